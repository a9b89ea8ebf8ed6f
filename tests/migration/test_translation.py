"""v1 to v2 and back: the documented example exactly, every other line untouched, comments kept, aliases refused."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any, get_args

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from servescope.errors import ConfigurationError
from servescope.migration.document.document import DocumentError, is_same, read_document
from servescope.migration.fields.trt_llm import V1_BUILD, V1_RUNTIME, Stack
from servescope.migration.translation.fates import FATES
from servescope.migration.translation.translation import Answers, Migration, translate
from tests.support.configurations import Style, draw_configuration
from tests.support.drawing import examples

# The documented pair of files, rebuilt.
V1 = """\
trt_llm:
  build:
    base_model: decoder
    checkpoint_repository:
      source: HF
      repo: "Qwen/Qwen3-4B"
    max_seq_len: 32768
    max_batch_size: 256
    max_num_tokens: 8192
    quantization_type: fp8_kv
    tensor_parallel_count: 1
    plugin_configuration:
      paged_kv_cache: true
      use_paged_context_fmha: true
      use_fp8_context_fmha: true
  runtime:
    kv_cache_free_gpu_mem_fraction: 0.9
    enable_chunked_context: true
"""
V2 = """\
trt_llm:
  inference_stack: v2
  build:
    checkpoint_repository:
      source: HF
      repo: "Qwen/Qwen3-4B"
    quantization_type: fp8_kv
  runtime:
    max_seq_len: 32768
    max_batch_size: 256
    max_num_tokens: 8192
    tensor_parallel_size: 1
    enable_chunked_prefill: true
"""


def migrated(text: str, **options: Any) -> str:
    """The translated text, which there has to be."""
    found = translate(read_document(text, "f.yaml"), **options)
    assert found.text is not None, (found.findings, found.questions)
    return found.text


def test_the_documented_v1_file_becomes_the_documented_v2_file() -> None:
    """Byte for byte."""
    assert migrated(V1) == V2


@pytest.mark.reference
def test_the_reference_pair_is_the_one_above(reference: Path) -> None:
    """The vendor's own files are translated exactly."""
    example = reference / "reference" / "migration-example"
    v1, v2 = ((example / f"{name}.yaml").read_text(encoding="utf-8") for name in ("v1", "v2"))

    assert migrated(v1) == v2
    assert (v1, v2) == (V1, V2)


def test_a_v2_file_stays_as_it_is() -> None:
    """And so do a file without a trt_llm block, and an empty one."""
    for text in (V2, "model_name: x\n", "trt_llm: null\n", "", "# nothing\n"):
        found = translate(read_document(text, "f"))
        assert (found.text, found.changes, found.questions, found.is_changed) == (text, (), (), False)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (  # comments move along, the others stay
            """\
trt_llm:  # the engine
  build:
    # how long
    max_seq_len: 1024  # tokens

    # where from
    checkpoint_repository: {source: HF, repo: a/b}
""",
            """\
trt_llm:  # the engine
  inference_stack: v2
  build:

    # where from
    checkpoint_repository: {source: HF, repo: a/b}
  runtime:
    # how long
    max_seq_len: 1024  # tokens
""",
        ),
        (  # flow style, on one line
            "trt_llm: {build: {base_model: decoder, max_seq_len: 9, checkpoint_repository: {source: HF, repo: a/b}}}",
            "trt_llm: {inference_stack: v2, build: {checkpoint_repository: {source: HF, repo: a/b}}, "
            "runtime: {max_seq_len: 9}}",
        ),
        (  # JSON stays JSON
            '{"trt_llm": {"build": {"checkpoint_repository": {"source": "HF", "repo": "a/b"}, "max_seq_len": 9}}}\n',
            '{"trt_llm": {"inference_stack": "v2", "build": {"checkpoint_repository": {"source": "HF", "repo": "a/b"}},'
            ' "runtime": {"max_seq_len": 9}}}\n',
        ),
        (  # a runtime that loses its last field, and one that was empty
            "trt_llm:\n  build:\n    checkpoint_repository: {source: HF, repo: a/b}\n"
            "  runtime:  # old\n    total_token_limit: 9\n",
            "trt_llm:\n  inference_stack: v2\n  build:\n    checkpoint_repository: {source: HF, repo: a/b}\n"
            "  runtime: {}  # old\n",
        ),
        (
            "trt_llm:\n  runtime: { }\n  build: {checkpoint_repository: {source: HF, repo: a/b}, max_seq_len: 9}",
            "trt_llm:\n  inference_stack: v2\n  runtime: {max_seq_len: 9}\n"
            "  build: {checkpoint_repository: {source: HF, repo: a/b}}",
        ),
        (  # keys and values over several lines
            'trt_llm:\n  build:\n    ? "max_seq\\\n      _len"\n    :\n      # long\n      !!int "32768"\n'
            "    checkpoint_repository: {source: HF,\n      repo: a/b}\n",
            "trt_llm:\n  inference_stack: v2\n  build:\n    checkpoint_repository: {source: HF,\n      repo: a/b}\n"
            '  runtime:\n    # long\n    "max_seq_len": !!int "32768"\n',
        ),
        (  # the declaration comes first, with its comment
            "trt_llm:\n  build:\n    checkpoint_repository: {source: HF, repo: a/b}\n"
            "  # old\n  inference_stack: 'v1' # x\n",
            "trt_llm:\n  # old\n  inference_stack: v2 # x\n  build:\n"
            "    checkpoint_repository: {source: HF, repo: a/b}\n  runtime: {}\n",
        ),
        (  # false is carried over, in its own spelling
            "trt_llm:\n  build:\n    checkpoint_repository: {source: HF, repo: a/b}\n"
            "  runtime:\n    'enable_chunked_context' : no # off\n",
            "trt_llm:\n  inference_stack: v2\n  build:\n    checkpoint_repository: {source: HF, repo: a/b}\n"
            "  runtime:\n    'enable_chunked_prefill' : no # off\n",
        ),
        (  # a last line without an end that is removed
            "trt_llm:\n  build:\n    checkpoint_repository: {source: HF, repo: a/b}\n"
            "  runtime:\n    served_model_name: x\n    total_token_limit: 9",
            "trt_llm:\n  inference_stack: v2\n  build:\n    checkpoint_repository: {source: HF, repo: a/b}\n"
            "  runtime:\n    served_model_name: x",
        ),
        (  # a comment behind the last entry of braces that stays
            "trt_llm:\n  build: {checkpoint_repository: {source: HF, repo: a/b}, # here\n    max_batch_size: 3}\n",
            "trt_llm:\n  inference_stack: v2\n  build: {checkpoint_repository: {source: HF, repo: a/b} # here\n    }\n"
            "  runtime:\n    max_batch_size: 3\n",
        ),
        (  # anchors that stay within what is kept
            "model_metadata: &repo {source: HF, repo: a/b}\ntrt_llm:\n  build:\n    checkpoint_repository: *repo\n"
            "    base_model: decoder\n",
            "model_metadata: &repo {source: HF, repo: a/b}\ntrt_llm:\n  inference_stack: v2\n  build:\n"
            "    checkpoint_repository: *repo\n  runtime: {}\n",
        ),
    ],
    ids=["comments", "flow", "json", "last", "empty", "lines", "declared", "false", "end", "braces", "anchor"],
)  # fmt: skip
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_a_file_keeps_its_style(before: str, after: str, newline: str, mark: str) -> None:
    """Comments, quotes, braces, line ends, byte order mark, and whether the last line ends."""
    assert migrated(mark + before.replace("\n", newline)) == mark + after.replace("\n", newline)


@pytest.mark.slow
@settings(max_examples=examples(150))
@given(
    st.integers(0, 2**32),
    st.sampled_from([0, 0.15, 0.5, 1]),
    st.sampled_from([0, 0.2, 0.6]),
    st.sampled_from([0, 0.1, 1]),
    st.sampled_from([0, 0.1]),
    st.sampled_from(["\n", "\r\n"]),
    st.booleans(),
)
def test_configurations_in_any_style(
    seed: int, flow: float, comments: float, quotes: float, explicit: float, newline: str, mark: bool
) -> None:
    """Any valid one is translated; all else stays; no comment is lost; once more changes nothing; there and back."""
    random = Random(seed)
    config = draw_configuration(random)
    style = Style(random, flow=flow, comments=comments, quotes=quotes, explicit=explicit, newline=newline)
    text = ("\ufeff" if mark else "") + style.write(config)
    found = translate(read_document(text, "f"))
    assert found.text is not None, (text, found.findings)

    after = yaml.safe_load(found.text.removeprefix("\ufeff"))
    assert is_same({**after, "trt_llm": 0}, {**config, "trt_llm": 0})
    check_block(config["trt_llm"], after["trt_llm"])
    check_lines(text, found)
    removed = [comment.text for change in found.changes for comment in change.comments]
    for comment in style.comments_written:
        kept = [line for line in found.text.splitlines() if line.endswith(comment) or f"{comment} #" in line]
        assert len(kept) + removed.count(comment) == 1, (comment, text, found.text)

    again = translate(read_document(found.text, "f"))
    assert (again.text, again.changes) == (found.text, ())
    back = translate(again.document, "v1")
    check_back(config["trt_llm"], back)
    forth = translate(read_document(back.text or "", "f"))
    assert forth.text is not None
    assert is_same(yaml.safe_load(forth.text.removeprefix("\ufeff")), after)


@pytest.mark.slow
@settings(max_examples=examples(100))
@given(st.integers(0, 2**32), st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 6), st.sampled_from(
    [" ", "\n", ":", "- ", "#", "{", "}", "]", ",", "&a ", "*a", "<<: ", "? ", "|\n", "'", "!!int ", "\t", "\u2028",
     "---\n"]
)), min_size=1, max_size=4))  # fmt: skip
def test_damaged_configurations(seed: int, damages: list[tuple[int, int, str]]) -> None:
    """Translated to what was intended, or refused with an error for users; never another error."""
    random = Random(seed)
    text = Style(random).write(draw_configuration(random))
    for at, deleted, inserted in damages:
        at %= len(text) + 1
        text = text[:at] + inserted + text[at + deleted :]
    for to in get_args(Stack):
        with suppress(ConfigurationError):
            translate(read_document(text, "f"), to)


def check_block(v1: dict[str, Any], v2: dict[str, Any]) -> None:
    """A v2 block has what the vendor's seven documented changes leave of a v1 one."""
    moved = {"max_seq_len": "max_seq_len", "max_batch_size": "max_batch_size", "max_num_tokens": "max_num_tokens",
             "tensor_parallel_count": "tensor_parallel_size"}  # fmt: skip
    build, runtime = v1["build"], v1.get("runtime", {})
    kept = ("checkpoint_repository", "quantization_type", "quantization_config", "num_builder_gpus")
    expected = {onto: build[name] for name, onto in moved.items() if name in build}
    if "served_model_name" in runtime:
        expected["served_model_name"] = runtime["served_model_name"]
    if "enable_chunked_context" in runtime:
        expected["enable_chunked_prefill"] = runtime["enable_chunked_context"]
    assert v2 == {
        "inference_stack": "v2",
        "build": {name: build[name] for name in kept if name in build},
        "runtime": expected,
    }


def check_lines(text: str, found: Migration) -> None:
    """The lines outside of the block are there as they were."""
    root = found.document.root
    assert root is not None
    assert found.text is not None
    keys = [each.key.value for each in root.entries]
    at = keys.index("trt_llm")
    assert found.text.startswith(text[: root.entries[at].key.start])
    if at + 1 < len(keys):
        assert found.text.endswith(text[root.entries[at + 1].key.start :])


def check_back(v1: dict[str, Any], back: Migration) -> None:
    """What came from v1 is as it was there."""
    assert back.text is not None, (back.findings, back.questions)
    block = yaml.safe_load(back.text.removeprefix("\ufeff"))["trt_llm"]
    assert block["inference_stack"] == "v1"
    for section, names in (
        (
            "build",
            ("checkpoint_repository", "max_seq_len", "max_batch_size", "max_num_tokens", "tensor_parallel_count"),
        ),
        ("runtime", ("enable_chunked_context", "served_model_name")),
    ):
        there = v1.get(section, {})
        assert {name: block[section].get(name) for name in names} == {name: there.get(name) for name in names}


FIELDS = (
    "checkpoint_repository",
    "quantization_type",
    "num_builder_gpus",
    "max_seq_len",
    "max_batch_size",
    "base_model",
)
MOVING = {"max_seq_len", "max_batch_size", "base_model"}


@pytest.mark.slow
@settings(max_examples=examples(150))
@given(
    st.permutations(FIELDS), st.sets(st.sampled_from(FIELDS)), st.sets(st.sampled_from(FIELDS)), st.booleans(),
    st.sampled_from(["\n", "\r\n"]),
)  # fmt: skip
def test_anchors_and_aliases(order: list[str], anchored: set[str], used: set[str], is_flow: bool, newline: str) -> None:
    """Those on what stays are kept; one that needs an anchor on what is moved is refused by its name."""
    values = dict(zip(FIELDS, ("{source: HF, repo: a/b}", "fp8", "2", "9", "3", "decoder"), strict=True))
    written = [f"{name}: {f'&{name} ' if name in anchored else ''}{values[name]}" for name in order]
    build = f" {{{', '.join(written)}}}" if is_flow else "".join(f"\n    {each}" for each in written)
    aliases = [name for name in order if name in used & anchored]
    text = f"trt_llm:\n  build:{build}\nmodel_metadata: {{{', '.join(f'{each}: *{each}' for each in aliases)}}}\n"
    text = text.replace("\n", newline)
    refused = [name for name in aliases if name in MOVING]
    if refused:
        with pytest.raises(DocumentError, match=rf"alias \*({'|'.join(refused)}) needs its anchor in trt_llm.build"):
            translate(read_document(text, "f"))
        return

    after = yaml.safe_load(migrated(text))
    assert after["model_metadata"] == yaml.safe_load(text)["model_metadata"]
    assert after["trt_llm"]["runtime"] == {"max_seq_len": 9, "max_batch_size": 3}
    assert after["trt_llm"]["build"] == {name: yaml.safe_load(values[name]) for name in FIELDS if name not in MOVING}
    assert migrated(text).endswith(text[text.index("model_metadata") :])


BASE = "trt_llm:\n  build:\n    checkpoint_repository: {source: HF, repo: a/b}\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"a: &n 5\n{BASE}    max_seq_len: *n\n",
         "f:5:18: alias *n is the value of trt_llm.build.max_seq_len, which is moved: write it out"),
        (f"{BASE}    max_seq_len: &n 5\n  runtime:\n    total_token_limit: *n\n",
         "f:6:24: alias *n needs its anchor in trt_llm.build.max_seq_len, which is moved: write it out here"),
        (f"{BASE}    plugin_configuration: &p {{paged_kv_cache: true}}\nmodel_metadata: {{x: *p}}\n",
         "f:5:21: alias *p needs its anchor in trt_llm.build.plugin_configuration, which is moved: write it out here"),
        ("a: &b {checkpoint_repository: {source: HF, repo: a/b}}\ntrt_llm: {build: *b}\n",
         "f:2:18: alias *b spans keys that are moved: write its mapping out here"),
        ("a: &b {build: {checkpoint_repository: {source: HF, repo: a/b}}}\ntrt_llm: *b\n",
         "f:2:10: alias *b spans keys that are moved: write its mapping out here"),
        ("a: &b {max_seq_len: 5}\ntrt_llm:\n  build:\n    <<: *b\n    checkpoint_repository: {source: HF, repo: a/b}\n",
         "f:4:5: a merge (<<) of *b spans keys that are moved: write its keys out here"),
        ("trt_llm: &t\n  build: {checkpoint_repository: {source: HF, repo: a/b}}\nmodel_metadata: {old: *t}\n",
         "f:3:23: alias *t repeats keys that are moved: write them out here"),
        ("<<: {trt_llm: {build: {checkpoint_repository: {source: HF, repo: a/b}}}}\nmodel_name: x\n",
         "f:1:15: trt_llm comes with a merge (<<): write the block out"),
        (f"&k max_seq_len: 1\n{BASE}    *k : 5\n", "f:5:5: alias *k is a key here: write the key out"),
    ],
)  # fmt: skip
def test_aliases_that_span_moved_keys_are_refused_by_name(text: str, expected: str) -> None:
    """Nothing is written out for the reader, who decides what the anchor means."""
    with pytest.raises(DocumentError) as raised:
        translate(read_document(text, "f"))

    assert str(raised.value) == expected


@pytest.mark.parametrize(
    ("field", "path", "kind", "flag"),
    [
        ("base_model: encoder", "trt_llm.build.base_model", "blocking", ""),
        ("base_model: encoder_bert", "trt_llm.build.base_model", "blocking", ""),
        ("lora_adapters: {mine: {source: HF, repo: a/c}}", "trt_llm.build.lora_adapters", "blocking", ""),
        ("max_num_tokens: 131073", "trt_llm.build.max_num_tokens", "asked", "--max-num-tokens N"),
    ],
)
def test_what_is_asked_or_stays_on_v1(field: str, path: str, kind: str, flag: str) -> None:
    """Nothing is translated, and the question names its place and the option that answers it."""
    found = translate(read_document(f"{BASE}    {field}\n", "f"))

    assert found.text is None
    assert [(each.path, each.kind, each.flag, each.line) for each in found.questions] == [(path, kind, flag, 4)]
    assert [each.kind for each in found.changes if each.line == 4] == ["moved" if kind == "asked" else "blocking"]


def test_an_answer_is_used_where_it_is_needed() -> None:
    """Above v2's limit; a value within it stays."""
    answers = Answers(max_num_tokens=65536)

    assert "max_num_tokens: 65536  # big" in migrated(f"{BASE}    max_num_tokens: 200000  # big\n", answers=answers)
    assert "max_num_tokens: 100000" in migrated(f"{BASE}    max_num_tokens: 100000\n", answers=answers)


@pytest.mark.parametrize(
    "field",
    ["lora_adapters: null", "lora_adapters: {}", "lora_configuration: {max_lora_rank: 8}",
     "moe_expert_parallel_option: -1",
     "speculator: {speculative_decoding_mode: LOOKAHEAD_DECODING, lookahead_windows_size: 7, lookahead_ngram_size: 5,"
     " lookahead_verification_set_size: 3}", "max_batch_size: 64"],
)  # fmt: skip
def test_documented_removals_need_no_answer(field: str) -> None:
    """They are made, and reported with what to do."""
    found = translate(read_document(f"{BASE}    {field}\n", "f"))
    name = field.partition(":")[0]
    (change,) = [each for each in found.changes if each.before == f"build.{name}"]

    assert found.text is not None
    assert (change.kind == "moved") == (name == "max_batch_size")
    assert change.kind != "unsupported" or change.todo


def test_what_cannot_go_back_is_reported_or_asked() -> None:
    """patch_kwargs is dropped; a size that is not the number of GPUs, and a missing checkpoint, stop it."""
    v2 = "trt_llm:\n  inference_stack: v2\n  build: {checkpoint_repository: {source: HF, repo: a/b}}\n  runtime:\n"
    found = translate(read_document(f"{v2}    patch_kwargs: {{a: 1}}  # fast\n", "f"), "v1")
    assert found.text == v2.replace("stack: v2", "stack: v1").replace("  runtime:\n", "  runtime: {}\n")
    (change,) = [each for each in found.changes if each.before == "runtime.patch_kwargs"]
    assert (change.kind, [each.text for each in change.comments]) == ("unsupported", ["# fast"])

    unequal = translate(
        read_document(f"resources: {{accelerator: 'H100:4'}}\n{v2}    tensor_parallel_size: 2\n", "f"), "v1"
    )
    assert [each.path for each in unequal.questions] == ["trt_llm.runtime.tensor_parallel_size"]
    bare = "trt_llm: {inference_stack: v2, build: {skip_build_result: true}, runtime: {}}"
    assert [each.path for each in translate(read_document(bare, "f"), "v1").questions] == [
        "trt_llm.build.checkpoint_repository"
    ]


def test_every_field_of_v1_has_a_fate() -> None:
    """The table of what happens and the table of what a field may be have the same fields."""
    known = {f"build.{name}" for name, field in V1_BUILD.keys.items() if not field.elsewhere}
    known |= {f"runtime.{name}" for name, field in V1_RUNTIME.keys.items() if not field.elsewhere}

    assert {fate.v1 for fate in FATES} - {"inference_stack", "version_overrides"} == known
    assert len({fate.v1 for fate in FATES}) == len(FATES)
    for fate in FATES:
        assert bool(fate.v2) == (fate.kind in ("set", "kept", "moved", "renamed"))
        assert fate.todo or fate.kind != "unsupported"
