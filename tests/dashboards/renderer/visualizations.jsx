// One panel's content, drawn by Grafana's components as its panels use them.
import { VizOrientation, cacheFieldDisplayNames, getDisplayValueAlignmentFactors, getFieldDisplayValues } from "@grafana/data";
import { BigValue, TimeSeries, VizRepeater, preparePlotFrame, useTheme2 } from "@grafana/ui";
import { TableNG } from "@grafana/ui/unstable";

import { Marks } from "./annotations.jsx";
import { load } from "./fields.js";
import { Gauge } from "./gauge.jsx";
import { Heatmap } from "./heatmap.jsx";
import { StateTimeline } from "./timeline.jsx";

// What Grafana's panel has where a dashboard says nothing.
const LEGEND = { showLegend: true, displayMode: "list", placement: "bottom", calcs: [] };

function Graph({ panel, frames, marks, range, timeZone, width, height }) {
  return (
    <TimeSeries
      frames={frames}
      timeRange={range}
      timeZone={timeZone}
      width={width}
      height={height}
      legend={{ ...LEGEND, ...panel.options.legend }}
      options={panel.options}
      structureRev={1}
      preparePlotFrame={align}
    >
      {(config) => <Marks config={config} id={panel.id} marks={marks} />}
    </TimeSeries>
  );
}

// Aligning forgets the names that colours go by.
function align(frames, fields, range) {
  const aligned = preparePlotFrame(frames, fields, range);
  cacheFieldDisplayNames(frames);
  return aligned;
}

function useReduced(panel, frames, timeZone) {
  const theme = useTheme2();
  return () =>
    getFieldDisplayValues({
      sparkline: panel.options.graphMode === "area",
      fieldConfig: load(panel.fieldConfig),
      reduceOptions: panel.options.reduceOptions,
      replaceVariables: (text) => text,
      theme,
      timeZone,
      data: frames,
    });
}

function Stat({ panel, frames, timeZone, width, height }) {
  const theme = useTheme2();
  const getValues = useReduced(panel, frames, timeZone);
  const { options } = panel;
  return (
    <VizRepeater
      getValues={getValues}
      getAlignmentFactors={getDisplayValueAlignmentFactors}
      renderValue={({ value, alignmentFactors, width: itsWidth, height: itsHeight, count }) => (
        <BigValue
          value={value.display}
          sparkline={value.sparkline}
          count={count}
          colorMode={options.colorMode}
          graphMode={options.graphMode}
          justifyMode={options.justifyMode}
          textMode={options.textMode === "auto" && count === 1 ? "value" : options.textMode}
          wideLayout={options.wideLayout}
          alignmentFactors={alignmentFactors}
          width={itsWidth}
          height={itsHeight}
          theme={theme}
        />
      )}
      source={frames}
      renderCounter={1}
      width={width}
      height={height}
      orientation={options.orientation ?? VizOrientation.Auto}
    />
  );
}

function Gauges({ panel, frames, timeZone, width, height }) {
  const getValues = useReduced(panel, frames, timeZone);
  return (
    <VizRepeater
      getValues={getValues}
      renderValue={({ value, width: itsWidth, height: itsHeight, count }) => (
        <Gauge value={value} showName={count > 1} width={itsWidth} height={itsHeight} />
      )}
      source={frames}
      renderCounter={1}
      width={width}
      height={height}
      autoGrid
      minVizWidth={75}
      minVizHeight={75}
      orientation={panel.options.orientation ?? VizOrientation.Auto}
    />
  );
}

function Table({ panel, frames, range, width, height }) {
  return (
    <TableNG
      data={frames[0]}
      width={width}
      height={height}
      noHeader={!panel.options.showHeader}
      cellHeight={panel.options.cellHeight}
      fieldConfig={load(panel.fieldConfig)}
      timeRange={range}
      structureRev={1}
      enableVirtualization={false}
    />
  );
}

const VISUALIZATIONS = { timeseries: Graph, stat: Stat, gauge: Gauges, table: Table, heatmap: Heatmap, "state-timeline": StateTimeline };

/** The component that draws panels of a type. */
export function findVisualization(type) {
  const found = VISUALIZATIONS[type];
  if (!found) throw new Error(`panels of type ${type} cannot be drawn, only ${Object.keys(VISUALIZATIONS).join(", ")}`);
  return found;
}
