// Field configuration, overrides and transformations, applied by Grafana's own code.
import {
  FieldConfigOptionsRegistry,
  applyFieldOverrides,
  cacheFieldDisplayNames,
  identityOverrideProcessor,
  standardTransformers,
  standardTransformersRegistry,
  transformDataFrame,
} from "@grafana/data";
import { lastValueFrom } from "rxjs";

import { replaceVariables } from "./variables.js";

const STANDARD = ["unit", "min", "max", "decimals", "color", "thresholds", "mappings", "noValue", "links", "displayName", "description"];
// Those of the panels that are drawn here, which Grafana's panels register themselves.
const CUSTOM = {
  timeseries: [
    "drawStyle", "lineInterpolation", "lineWidth", "lineStyle", "fillOpacity", "fillBelowTo", "gradientMode", "showPoints",
    "pointSize", "spanNulls", "stacking", "axisPlacement", "axisLabel", "axisSoftMin", "axisSoftMax", "axisGridShow",
    "axisBorderShow", "axisColorMode", "axisCenteredZero", "axisWidth", "barAlignment", "barWidthFactor", "hideFrom",
    "scaleDistribution", "thresholdsStyle", "transform", "insertNulls",
  ],
  table: ["align", "cellOptions", "filterable", "width", "minWidth", "hideFrom", "inspect", "footer", "wrapHeaderText"],
  stat: [],
  gauge: [],
  heatmap: ["hideFrom", "scaleDistribution"],
  "state-timeline": ["fillOpacity", "lineWidth", "hideFrom"],
};

standardTransformersRegistry.setInit(() =>
  [
    standardTransformers.mergeTransformer,
    standardTransformers.organizeFieldsTransformer,
    standardTransformers.labelsToFieldsTransformer,
    standardTransformers.sortByTransformer,
    standardTransformers.reduceTransformer,
    standardTransformers.renameByRegexTransformer,
    standardTransformers.joinByFieldTransformer,
    standardTransformers.limitTransformer,
  ].map((transformer) => ({ ...transformer, transformation: () => Promise.resolve(transformer) })),
);

function makeRegistry(type) {
  const item = (id, isCustom) => ({
    id: isCustom ? `custom.${id}` : id,
    path: id,
    name: id,
    isCustom,
    process: identityOverrideProcessor,
    shouldApply: () => true,
  });
  return new FieldConfigOptionsRegistry(() => [
    ...STANDARD.map((id) => item(id, false)),
    ...CUSTOM[type].map((id) => item(id, true)),
  ]);
}

/** The frames as the panel wants them: transformed, and every field with its configuration and its display. */
export async function prepareFrames(panel, frames, { theme, range, variables, timeZone }) {
  const interpolate = (text) => replaceVariables(text, variables);
  const transformed = await transform(panel, frames, interpolate);
  const registry = makeRegistry(panel.type);
  refuseUnknown(panel, registry);
  const prepared = applyFieldOverrides({
    data: transformed,
    fieldConfig: load(panel.fieldConfig),
    fieldConfigRegistry: registry,
    replaceVariables: (text, scoped) => replaceLinks(text, scoped, { range, variables }),
    theme,
    timeZone,
  });
  // Colours and headings go by it.
  cacheFieldDisplayNames(prepared);
  return prepared;
}

async function transform(panel, frames, interpolate) {
  const transformations = panel.transformations ?? [];
  for (const { id } of transformations) {
    if (!standardTransformersRegistry.getIfExists(id)) throw new Error(`${panel.title}: unknown transformation ${id}`);
  }
  if (!transformations.length) return frames;
  return lastValueFrom(transformDataFrame(transformations, frames, { interpolate }));
}

// Grafana leaves out silently what it does not know; in a picture that would go unseen.
function refuseUnknown(panel, registry) {
  const { defaults, overrides } = panel.fieldConfig;
  const used = [
    ...Object.keys(defaults).filter((id) => id !== "custom"),
    ...Object.keys(defaults.custom ?? {}).map((id) => `custom.${id}`),
    ...overrides.flatMap((override) => override.properties.map((property) => property.id)),
  ];
  const unknown = used.filter((id) => !registry.getIfExists(id));
  if (unknown.length) throw new Error(`${panel.title}: unknown options of fields: ${unknown.join(", ")}`);
}

/** The configuration with thresholds as Grafana has them once a dashboard is loaded: their base is below every value. */
export function load(part) {
  if (Array.isArray(part)) return part.map(load);
  if (part === null || typeof part !== "object") return part;
  if (Array.isArray(part.steps)) {
    return { ...part, steps: part.steps.map((step) => ({ ...step, value: step.value ?? -Infinity })) };
  }
  return Object.fromEntries(Object.entries(part).map(([key, value]) => [key, load(value)]));
}

function replaceLinks(text, scoped, { range, variables }) {
  const fields = scoped?.__dataContext?.value?.frame?.fields ?? [];
  const row = scoped?.__dataContext?.value?.rowIndex ?? 0;
  const special = Object.fromEntries(
    fields.map((field) => [`__data.fields.${field.config.displayName ?? field.name}`, encodeURIComponent(field.values[row])]),
  );
  const context = scoped?.__dataContext?.value;
  special["__value.raw"] = context?.field?.values[row] ?? "";
  special.__url_time_range = `from=${range.from.valueOf()}&to=${range.to.valueOf()}`;
  return replaceVariables(text, variables, special);
}
