// What a dashboard's variables stand for, with what they hold when it is opened.
import { ask } from "./prometheus.js";

const ALL = "$__all";
const LABEL_VALUES = /^label_values\((.+), (\w+)\)$/s;
const REFERENCE = /\$([a-z_]\w*)|\$\{([^}:]+)(?::(\w+))?\}/g;

/** The variables in order, each `{name, label, text, value}`; those of a label are asked for, and must have values unless all are chosen. */
export async function readVariables(board, range) {
  const variables = [];
  for (const variable of board.templating.list) {
    variables.push({
      name: variable.name,
      label: variable.label,
      ...(await readChoice(variable, variables, range)),
    });
  }
  return variables;
}

async function readChoice(variable, before, range) {
  switch (variable.type) {
    case "datasource":
      return { text: variable.current?.text || "prometheus", value: "prometheus" };
    case "adhoc":
      // Nothing is filtered until somebody adds a filter.
      return { text: "+", value: "" };
    case "custom":
    case "interval":
    case "constant":
      return chosen(variable);
    case "query": {
      const found = LABEL_VALUES.exec(variable.query.query);
      if (!found) throw new Error(`variable ${variable.name}: ${variable.query.query} is no label_values(…)`);
      const values = await ask(`label/${found[2]}/values`, {
        "match[]": replaceVariables(found[1], before),
        start: range.from.valueOf() / 1000,
        end: range.to.valueOf() / 1000,
      });
      if (!values.length && !variable.includeAll) throw new Error(`variable ${variable.name}: ${variable.query.query} has no values`);
      return { ...chosen(variable), values };
    }
    default:
      throw new Error(`variable ${variable.name}: cannot show one of type ${variable.type}`);
  }
}

function chosen({ name, current, allValue }) {
  const values = [current?.value ?? []].flat();
  const texts = [current?.text ?? []].flat();
  if (!values.length) throw new Error(`variable ${name}: nothing is chosen`);
  // A query has the regex of All as it stands, and those of several values beside each other.
  const value = values.includes(ALL) ? allValue : values.length > 1 ? `(${values.join("|")})` : values[0];
  return { text: texts.join(" + "), value };
}

/** The text with every variable replaced; `special` gives those of Grafana, by name. */
export function replaceVariables(text, variables, special = {}) {
  return text.replace(REFERENCE, (reference, plain, braced, format) => {
    const name = plain ?? braced;
    if (name in special) return special[name];
    const variable = variables.find((each) => each.name === name);
    if (!variable) throw new Error(`${reference} in ${text} is no variable of the dashboard`);
    return format === "queryparam" ? `var-${name}=${encodeURIComponent(variable.value)}` : variable.value;
  });
}
