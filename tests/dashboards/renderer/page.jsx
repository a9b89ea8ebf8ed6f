// One dashboard as a page: `?board=fleet&theme=dark&end=1700004200`, with `&minutes=5` for less than it shows at first, and `&opened` with every row open. What became of each panel is in `window.panels`.
import { useEffect, useState } from "react";
import { createRoot } from "react-dom/client";
import { ThemeContext, createTheme, dateTime, rangeUtil } from "@grafana/data";
import { initPluginTranslations } from "@grafana/i18n";
import { GlobalStyles, PanelChrome, useTheme2 } from "@grafana/ui";

import { prepareFrames } from "./fields.js";
import { queryAnnotations, queryPanel } from "./prometheus.js";
import { readVariables } from "./variables.js";
import { findVisualization } from "./visualizations.jsx";

const COLUMNS = 24;
const [CELL, GAP, MARGIN] = [30, 8, 16];

// How each panel ended: "drawn", "no data" with its text, or "failed" with the reason; absent while it is not there yet.
window.panels = {};

async function open() {
  const chosen = new URLSearchParams(location.search);
  const board = await (await fetch(`boards/${chosen.get("board")}.json`)).json();
  const to = dateTime(Number(chosen.get("end")) * 1000);
  const span = chosen.has("minutes") ? `${chosen.get("minutes")}m` : board.time.from.replace("now-", "");
  const from = dateTime(to.valueOf() - rangeUtil.intervalToMs(span));
  const range = { from, to, raw: { from: board.time.from, to: board.time.to } };
  const variables = await readVariables(board, range);
  const marks = await queryAnnotations(board, { range, variables });
  if (chosen.has("opened")) board.panels = openRows(board.panels);
  board.panels = await repeat(board.panels, variables);
  return { board, range, variables, marks, timeZone: board.timezone };
}

// Every collapsed row open: its panels below it, and what follows moves down.
function openRows(panels) {
  const opened = [];
  let moved = 0;
  for (const { panels: inside = [], ...panel } of panels) {
    const down = ({ gridPos, ...each }) => ({ ...each, gridPos: { ...gridPos, y: gridPos.y + moved } });
    opened.push(down(panel), ...inside.map(down));
    const bottoms = inside.map(({ gridPos }) => gridPos.y + gridPos.h);
    moved += Math.max(panel.gridPos.y + 1, ...bottoms) - (panel.gridPos.y + 1);
  }
  return opened;
}

// A panel that is repeated for a variable has one for each of its values, beside each other, and what follows moves down.
async function repeat(panels, variables) {
  const repeated = [];
  let moved = 0;
  for (const panel of panels) {
    const place = { ...panel.gridPos, y: panel.gridPos.y + moved };
    if (!panel.repeat) {
      repeated.push({ ...panel, gridPos: place });
      continue;
    }
    const values = variables.find((each) => each.name === panel.repeat).values;
    const wide = COLUMNS / Math.min(panel.maxPerRow, values.length);
    values.forEach((value, index) => {
      const [line, column] = [Math.floor(index / panel.maxPerRow), index % panel.maxPerRow];
      repeated.push({
        ...panel,
        id: index ? `${panel.id}-clone-${index}` : panel.id,
        title: panel.title.replace(`$${panel.repeat}`, value),
        gridPos: { x: column * wide, y: place.y + line * place.h, w: wide, h: place.h },
        scoped: { [panel.repeat]: value },
      });
    });
    moved += (Math.ceil(values.length / panel.maxPerRow) - 1) * place.h;
  }
  return repeated;
}

function Dashboard({ board, range, variables, marks, timeZone }) {
  const theme = useTheme2();
  const width = document.documentElement.clientWidth - 2 * MARGIN;
  const bottom = Math.max(...board.panels.map(({ gridPos }) => gridPos.y + gridPos.h));
  return (
    <div style={{ padding: MARGIN, background: theme.colors.background.canvas, color: theme.colors.text.primary }}>
      <Header board={board} variables={variables} range={range} marks={marks} />
      <div style={{ position: "relative", width, height: bottom * (CELL + GAP) - GAP }}>
        {board.panels.map((panel) => {
          const place = position(panel.gridPos, width);
          const Element = panel.type === "row" ? RowTitle : Panel;
          return (
            <div key={panel.id} style={{ position: "absolute", ...place }}>
              <Element panel={panel} place={place} shared={{ range, variables: choose(variables, panel.scoped), marks, timeZone }} />
            </div>
          );
        })}
      </div>
    </div>
  );
}

const choose = (variables, scoped = {}) =>
  variables.map((each) => (each.name in scoped ? { ...each, value: scoped[each.name] } : each));

function position({ x, y, w, h }, width) {
  const column = (width - (COLUMNS - 1) * GAP) / COLUMNS;
  return {
    left: Math.round(x * (column + GAP)),
    top: y * (CELL + GAP),
    width: Math.round(w * (column + GAP) - GAP),
    height: h * (CELL + GAP) - GAP,
  };
}

function Header({ board, variables, range, marks }) {
  const theme = useTheme2();
  const box = { border: `1px solid ${theme.colors.border.medium}`, borderRadius: 2, background: theme.colors.background.primary };
  const kinds = [...new Map(marks.map((mark) => [mark.title, mark.color]))];
  const line = { display: "flex", flexWrap: "wrap", alignItems: "center", gap: 8, marginBottom: 12 };
  return (
    <>
      <div style={{ ...line, justifyContent: "space-between" }}>
        <span style={theme.typography.h4}>{board.title}</span>
        <span style={{ ...box, padding: "4px 8px" }}>{`${range.from.format("YYYY-MM-DD HH:mm")} to ${range.to.format("HH:mm")}`}</span>
      </div>
      <div style={line}>
        {variables.map(({ name, label, text }) => (
          <span key={name} style={{ ...box, display: "inline-flex" }}>
            <span style={{ padding: "4px 8px", background: theme.colors.background.secondary, fontWeight: 500 }}>{label || name}</span>
            <span style={{ padding: "4px 8px" }}>{text}</span>
          </span>
        ))}
        {board.links.map((link) => (
          <span key={link.url} style={{ ...box, padding: "4px 8px", color: theme.colors.text.link }}>{link.title}</span>
        ))}
        {kinds.map(([title, color]) => (
          <span key={title} style={{ display: "inline-flex", alignItems: "center", gap: 4 }}>
            <span style={{ width: 8, height: 8, background: theme.visualization.getColorByName(color) }} />
            {title}
          </span>
        ))}
      </div>
    </>
  );
}

function RowTitle({ panel }) {
  const theme = useTheme2();
  return <div style={{ ...theme.typography.h6, lineHeight: `${CELL}px`, fontWeight: 500 }}>{panel.collapsed ? `› ${panel.title}` : panel.title}</div>;
}

function Panel({ panel, place, shared }) {
  return (
    <PanelChrome title={panel.title} description={panel.description} width={place.width} height={place.height}>
      {(width, height) => <Content panel={panel} width={width} height={height} {...shared} />}
    </PanelChrome>
  );
}

function Content({ panel, width, height, range, variables, marks, timeZone }) {
  const theme = useTheme2();
  const [frames, setFrames] = useState(null);
  const [failure, setFailure] = useState(null);
  useEffect(() => {
    Promise.resolve()
      .then(() => findVisualization(panel.type))
      .then(() => queryPanel(panel, { range, variables, width }))
      .then((found) => prepareFrames(panel, found, { theme, range, variables, timeZone }))
      .then(setFrames)
      .catch((error) => setFailure(String(error)));
    // A picture is of one moment: nothing here changes.
  }, []);
  const isEmpty = frames?.every((frame) => frame.length === 0);
  useEffect(() => {
    if (failure) window.panels[panel.id] = { state: "failed", text: failure };
    else if (frames) window.panels[panel.id] = isEmpty ? { state: "no data", text: panel.fieldConfig.defaults.noValue } : { state: "drawn" };
  }, [failure, frames, isEmpty, panel]);
  if (failure) return <div style={{ color: theme.colors.error.text }}>{failure}</div>;
  if (!frames) return null;
  // As in Grafana, a panel without data shows the text that is set for that.
  if (isEmpty) return <NoData text={panel.fieldConfig.defaults.noValue ?? "No data"} width={width} height={height} />;
  const Visualization = findVisualization(panel.type);
  return (
    <div data-content={panel.id} style={{ width, height }}>
      <Visualization {...{ panel, frames, marks, range, timeZone, width, height }} />
    </div>
  );
}

function NoData({ text, width, height }) {
  const theme = useTheme2();
  const style = { width, height, display: "flex", alignItems: "center", justifyContent: "center", textAlign: "center" };
  return <div style={{ ...style, color: theme.colors.text.secondary, fontSize: theme.typography.h4.fontSize }}>{text}</div>;
}

function Page(opened) {
  const theme = createTheme({ colors: { mode: new URLSearchParams(location.search).get("theme") } });
  const [ready, setReady] = useState(false);
  useEffect(() => {
    // What is drawn on a canvas is not drawn again when its font arrives.
    Promise.all(["400 12px Inter", "500 12px Inter"].map((font) => document.fonts.load(font))).then(() => setReady(true));
  }, []);
  return (
    <ThemeContext.Provider value={theme}>
      <GlobalStyles />
      {ready && <Dashboard {...opened} />}
    </ThemeContext.Provider>
  );
}

initPluginTranslations("grafana")
  .then(open)
  .then((opened) => createRoot(document.getElementById("root")).render(<Page {...opened} />))
  .catch((error) => console.error(error));
