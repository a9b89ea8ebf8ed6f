// What Grafana's own code makes of values: reads {units, values, thresholds} from standard input, writes texts and colours.
globalThis.navigator = { userAgent: "node", language: "en", languages: ["en"] };

const { getValueFormat, getValueFormats } = require(`${process.argv[2]}/valueFormats/valueFormats.cjs`);
const { getActiveThreshold } = require(`${process.argv[2]}/field/thresholds.cjs`);

const { units, values, thresholds } = JSON.parse(require("fs").readFileSync(0, "utf8"));
const known = getValueFormats().flatMap((category) => category.submenu.map((format) => format.value));

const show = (unit, value) => {
  const { prefix = "", text, suffix = "" } = getValueFormat(unit)(value);
  return prefix + text + suffix;
};
// As Grafana does when it loads a dashboard.
const load = (steps) => steps.map(({ color, value }) => ({ color, value: value === null ? -Infinity : value }));

console.log(
  JSON.stringify({
    known: units.filter((unit) => known.includes(unit)),
    texts: Object.fromEntries(units.map((unit) => [unit, values.map((value) => show(unit, value))])),
    colors: thresholds.map(({ steps, value }) => getActiveThreshold(value, load(steps)).color),
  }),
);
