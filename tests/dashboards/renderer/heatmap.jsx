// Buckets over time. Grafana's heatmap lives in its application: this one draws the same cells, on Grafana's axes.
import { useMemo } from "react";
import { formattedValueToString, getValueFormat } from "@grafana/data";
import { AxisPlacement, ScaleDirection, ScaleDistribution, ScaleOrientation } from "@grafana/schema";
import { UPlotChart, UPlotConfigBuilder, useTheme2 } from "@grafana/ui";
import * as schemes from "d3-scale-chromatic";

import { countDrawn } from "./probe.js";

const LEGEND_HEIGHT = 28;

/** The heatmap of cumulative buckets, one frame for each `le`. */
export function Heatmap({ panel, frames, range, timeZone, width, height }) {
  const theme = useTheme2();
  const { cells, highest } = useMemo(() => spread(frames, panel.options.filterValues?.le ?? 0), [frames, panel]);
  const paint = useMemo(() => makePaint(panel.options.color, theme.isDark), [panel, theme]);
  const config = useMemo(
    () => makeConfig({ panel, cells, highest, paint, range, timeZone, theme }),
    [panel, cells, highest, paint, range, timeZone, theme],
  );
  // An axis appears where there is a series; its line is not drawn.
  const data = [cells.times, cells.times.map(() => 0)];
  return (
    <>
      <UPlotChart config={config} data={data} width={width} height={height - LEGEND_HEIGHT} />
      {panel.options.legend?.show && <ColorScale paint={paint} highest={highest} theme={theme} />}
    </>
  );
}

// A bucket holds what those below it hold, too: each cell is the difference to the one below.
function spread(frames, least) {
  const rows = frames
    .map(({ fields: [time, value] }) => ({ le: value.labels.le, at: new Map(time.values.map((each, i) => [each, value.values[i]])) }))
    .sort((one, other) => bound(one.le) - bound(other.le));
  const times = [...new Set(rows.flatMap((row) => [...row.at.keys()]))].sort((one, other) => one - other);
  let highest = 0;
  const values = rows.map((row, index) =>
    times.map((time) => {
      const value = Math.max((row.at.get(time) ?? 0) - (rows[index - 1]?.at.get(time) ?? 0), 0);
      highest = Math.max(highest, value);
      return value > least ? value : null;
    }),
  );
  return { cells: { times, values, bounds: rows.map((row) => bound(row.le)) }, highest };
}

const bound = (le) => (le === "+Inf" ? Infinity : Number(le));

function makePaint({ scheme, exponent, scale, steps, reverse }, isDark) {
  const interpolate = schemes[`interpolate${scheme}`];
  if (!interpolate) throw new Error(`unknown colour scheme ${scheme}`);
  const power = scale === "exponential" ? exponent : 1;
  // As in Grafana, schemes begin at what is nearest to the background.
  const flipped = isDark !== Boolean(reverse);
  return (share) => {
    const step = Math.min(Math.floor(share ** power * steps), steps - 1) / (steps - 1);
    return interpolate(flipped ? 1 - step : step);
  };
}

function makeConfig({ panel, cells, highest, paint, range, timeZone, theme }) {
  const builder = new UPlotConfigBuilder(timeZone);
  const format = getValueFormat(panel.options.yAxis?.unit ?? "short");
  builder.addScale({
    scaleKey: "x", isTime: true, orientation: ScaleOrientation.Horizontal, direction: ScaleDirection.Right,
    range: () => [range.from.valueOf(), range.to.valueOf()],
  });
  builder.addAxis({ scaleKey: "x", isTime: true, placement: AxisPlacement.Bottom, timeZone, theme, grid: { show: false } });
  builder.addScale({
    scaleKey: "y", isTime: false, orientation: ScaleOrientation.Vertical, direction: ScaleDirection.Up,
    distribution: ScaleDistribution.Linear, range: () => [-0.5, cells.bounds.length - 0.5],
  });
  builder.addAxis({
    scaleKey: "y", placement: AxisPlacement.Left, theme, grid: { show: false },
    splits: (plot) => thin(cells.bounds.map((_, index) => index + 0.5), plot.bbox.height / devicePixelRatio / 18),
    formatValue: (value) => label(cells.bounds[Math.round(value - 0.5)], format),
  });
  builder.addSeries({ scaleKey: "y", theme, lineWidth: 0, show: true, pathBuilder: () => null, pointsBuilder: () => null });
  builder.addHook("draw", (plot) => drawCells(plot, { cells, highest, paint, gap: panel.options.cellGap ?? 1 }));
  countDrawn(builder, panel.id);
  return builder;
}

const label = (value, format) => (value === Infinity ? "+Inf" : value === undefined ? "" : formattedValueToString(format(value)));

function thin(splits, room) {
  const every = Math.max(Math.ceil(splits.length / Math.max(room, 1)), 1);
  return splits.filter((_, index) => index % every === 0);
}

function drawCells(plot, { cells, highest, paint, gap }) {
  const { ctx } = plot;
  const step = cells.times.length > 1 ? cells.times[1] - cells.times[0] : 0;
  ctx.save();
  ctx.beginPath();
  ctx.rect(plot.bbox.left, plot.bbox.top, plot.bbox.width, plot.bbox.height);
  ctx.clip();
  cells.values.forEach((row, index) => {
    const [bottom, top] = [index - 0.5, index + 0.5].map((y) => Math.round(plot.valToPos(y, "y", true)));
    row.forEach((value, column) => {
      if (value === null) return;
      const [left, right] = [cells.times[column] - step, cells.times[column]].map((x) => Math.round(plot.valToPos(x, "x", true)));
      ctx.fillStyle = paint(value / highest);
      ctx.fillRect(left, top, Math.max(right - left - gap, 1), Math.max(bottom - top - gap, 1));
    });
  });
  ctx.restore();
}

function ColorScale({ paint, highest, theme }) {
  const stops = Array.from({ length: 33 }, (_, index) => paint(index / 32)).join(", ");
  const format = (value) => formattedValueToString(getValueFormat("short")(value));
  return (
    <div style={{ display: "flex", alignItems: "center", gap: 8, padding: "4px 8px", ...theme.typography.bodySmall }}>
      {format(0)}
      <div style={{ width: 300, height: 8, background: `linear-gradient(90deg, ${stops})` }} />
      {format(highest)}
    </div>
  );
}
