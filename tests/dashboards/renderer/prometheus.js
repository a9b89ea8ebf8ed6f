// Questions to Prometheus as Grafana's data source asks them, and the data frames it makes of the answers.
import { FieldType, createDataFrame, rangeUtil } from "@grafana/data";

import { replaceVariables } from "./variables.js";

// What Grafana takes a Prometheus to scrape at, unless its data source says otherwise.
const SCRAPE_INTERVAL = "15s";
const SCRAPE_MS = rangeUtil.intervalToMs(SCRAPE_INTERVAL);

/** What Prometheus says to a GET of /api/v1/…; an error or a warning is an exception. */
export async function ask(path, parameters) {
  const response = await fetch(`/api/v1/${path}?${new URLSearchParams(parameters)}`);
  const answer = await response.json();
  const complaints = [answer.error, ...(answer.warnings ?? []), ...(answer.infos ?? [])].filter(Boolean);
  if (complaints.length) throw new Error(`${JSON.stringify(parameters)}: ${complaints.join("; ")}`);
  return answer.data;
}

/** The data frames of all targets of a panel of so many pixels. */
export async function queryPanel(panel, { range, variables, width }) {
  const { intervalMs } = rangeUtil.calculateInterval(range, panel.maxDataPoints ?? width, panel.interval ?? SCRAPE_INTERVAL);
  const shown = panel.targets.filter((target) => !target.hide);
  const answers = await Promise.all(shown.map((target) => queryTarget(target, { range, variables, intervalMs })));
  return shown.flatMap((target, index) => toFrames(target, answers[index], shown.length, intervalMs));
}

function queryTarget(target, { range, variables, intervalMs }) {
  const query = replaceVariables(target.expr, variables, times(range, intervalMs));
  const step = intervalMs / 1000;
  if (target.instant) return ask("query", { query, time: range.to.valueOf() / 1000 });
  return ask("query_range", { query, step, start: align(range.from, step), end: align(range.to, step) });
}

/** Grafana's own variables of time, as it computes them. */
function times(range, intervalMs) {
  const seconds = Math.round((range.to.valueOf() - range.from.valueOf()) / 1000);
  return {
    __interval: `${intervalMs / 1000}s`,
    __rate_interval: `${Math.max(intervalMs + SCRAPE_MS, 4 * SCRAPE_MS) / 1000}s`,
    __range: `${seconds}s`,
    __range_s: `${seconds}`,
  };
}

const align = (moment, step) => Math.floor(moment.valueOf() / 1000 / step) * step;

function toFrames(target, answer, targets, intervalMs) {
  if (target.format === "table") return [toTable(target, answer.result, targets)];
  const series = answer.result.map((each) => ({ labels: each.metric, points: each.values ?? [each.value] }));
  return series.map(({ labels, points }) =>
    createDataFrame({
      refId: target.refId,
      meta: { type: "timeseries-multi" },
      fields: [
        // Where points are further apart than that, the line is broken.
        { name: "Time", type: FieldType.time, values: points.map(toMs), config: { interval: intervalMs } },
        {
          name: "Value",
          type: FieldType.number,
          values: points.map(toValue),
          labels,
          config: { displayNameFromDS: nameSeries(target.legendFormat, labels) },
        },
      ],
    }),
  );
}

function toTable(target, result, targets) {
  const labels = [...new Set(result.flatMap((each) => Object.keys(each.metric)))].sort();
  const value = targets > 1 ? `Value #${target.refId}` : "Value";
  return createDataFrame({
    refId: target.refId,
    meta: { preferredVisualisationType: "table" },
    fields: [
      { name: "Time", type: FieldType.time, values: result.map((each) => toMs(each.value)) },
      ...labels.map((label) => ({
        name: label,
        type: FieldType.string,
        values: result.map((each) => each.metric[label] ?? ""),
        config: { filterable: true },
      })),
      { name: value, type: FieldType.number, values: result.map((each) => toValue(each.value)) },
    ],
  });
}

const toMs = ([seconds]) => Math.round(seconds * 1000);
const toValue = ([, text]) => (text === "+Inf" ? Infinity : text === "-Inf" ? -Infinity : Number(text));

function nameSeries(format, labels) {
  if (format && format !== "__auto") return format.replace(/\{\{\s*(.+?)\s*\}\}/g, (_, label) => labels[label] ?? "");
  const pairs = Object.entries(labels).filter(([label]) => label !== "__name__");
  return `${labels.__name__ ?? ""}{${pairs.map(([label, value]) => `${label}="${value}"`).join(", ")}}`;
}

/** The marks of a dashboard, each `{time, timeEnd, color, title, text}`; times that follow each other are one region. */
export async function queryAnnotations(board, { range, variables }) {
  const asked = board.annotations.list.filter((annotation) => annotation.enable && annotation.target?.expr);
  const found = await Promise.all(asked.map((annotation) => queryAnnotation(annotation, { range, variables })));
  return found.flat().sort((one, other) => one.time - other.time);
}

async function queryAnnotation(annotation, { range, variables }) {
  const intervalMs = rangeUtil.intervalToMs(annotation.target.interval ?? "60s");
  const answer = await queryTarget(annotation.target, { range, variables, intervalMs });
  return answer.result.flatMap(({ metric, values }) => {
    const marks = [];
    for (const point of values) {
      if (!(toValue(point) > 0)) continue;
      const time = toMs(point);
      const last = marks.at(-1);
      if (last && time <= last.timeEnd + intervalMs) last.timeEnd = time;
      else marks.push({ time, timeEnd: time });
    }
    const [title, text] = [annotation.titleFormat, annotation.textFormat].map((format) => nameSeries(format ?? "", metric));
    return marks.map((mark) => ({ ...mark, title, text, color: annotation.iconColor }));
  });
}
