"""The vendor's documents as a table: lines, a case in our own words, what is given, and what has to be said of it.

A row of `S1.table` to `S5.table` is `LINES | CASE | INPUT | VERDICT`; a row without a case goes on with the one above.
An input is a YAML value, alone or as `SCOPE > VALUE`: the value is put where the scope is, in something that is valid
otherwise. `~drop` in place of a value removes the field, and what follows `;;` is put at the top of the file.

| verdict | what it wants |
|---|---|
| `ok` | no finding at all; of a metric, that it is there |
| `error TEXT`, `warning TEXT` | an error with this text; a warning with it and no error |
| `says TEXT`, `lacks TEXT` | the report, the findings or the checklist have this text, or do not have it |
| `becomes PATH: VALUE`, `without TEXT` | the new file has this value there, or does not have this text |
| `good`, `warning`, `critical`, `none` | the rating of a figure's value by its documented band |
| `see FILE::TEST` | a test of its own holds it |
| `no rule` | the lines state none: headings, prose, code and links |
"""
