// States over time, one lane for each series. Grafana's state timeline lives in its application: this one takes names, texts and colours from Grafana's code.
import { useLayoutEffect, useRef } from "react";
import { formattedValueToString, getFieldDisplayName } from "@grafana/data";
import { useTheme2 } from "@grafana/ui";

const [AXIS, LEGEND] = [22, 28];
const MOST_SHARE = 0.45;

/** A lane for each series, filled with the colour of the state it is in; a gap where there is none. */
export function StateTimeline({ panel, frames, range, timeZone, width, height }) {
  const theme = useTheme2();
  const canvas = useRef(null);
  const lanes = frames.map((frame) => ({ name: getFieldDisplayName(frame.fields[1], frame, frames), stretches: merge(frame) }));
  const names = Math.min(width * MOST_SHARE, Math.max(...lanes.map(({ name }) => measure(name, theme))) + 16);
  const row = (height - AXIS - LEGEND) / Math.max(lanes.length, 1);
  useLayoutEffect(() => {
    const ratio = devicePixelRatio;
    const element = canvas.current;
    [element.width, element.height] = [(width - names) * ratio, row * lanes.length * ratio];
    const ctx = element.getContext("2d");
    ctx.scale(ratio, ratio);
    const at = (time) => ((time - range.from.valueOf()) / (range.to.valueOf() - range.from.valueOf())) * (width - names);
    let painted = 0;
    lanes.forEach(({ stretches }, index) => {
      for (const { from, to, text, color } of stretches) {
        const [left, right] = [at(from), at(to)];
        ctx.globalAlpha = (panel.fieldConfig.defaults.custom?.fillOpacity ?? 70) / 100;
        ctx.fillStyle = color;
        ctx.fillRect(left, index * row + row * 0.1, Math.max(right - left, 1), row * 0.8);
        painted += Math.max(right - left, 1) * row * 0.8;
        ctx.globalAlpha = 1;
        ctx.fillStyle = theme.colors.text.primary;
        ctx.font = `12px ${theme.typography.fontFamily}`;
        if (ctx.measureText(text).width + 8 < right - left) ctx.fillText(text, (left + right - ctx.measureText(text).width) / 2, (index + 0.5) * row + 4);
      }
    });
    window.drawn[panel.id] = Math.round(painted);
  });
  const states = new Map(lanes.flatMap(({ stretches }) => stretches.map(({ text, color }) => [text, color])));
  return (
    <div style={{ fontSize: 12 }}>
      <div style={{ display: "flex" }}>
        <div style={{ width: names }}>
          {lanes.map(({ name }) => (
            <div key={name} style={{ height: row, lineHeight: `${row}px`, textAlign: "right", paddingRight: 8, overflow: "hidden", whiteSpace: "nowrap" }}>{name}</div>
          ))}
        </div>
        <canvas ref={canvas} style={{ width: width - names, height: row * lanes.length }} />
      </div>
      <div style={{ display: "flex", justifyContent: "space-between", marginLeft: names, height: AXIS, color: theme.colors.text.secondary }}>
        {[0, 0.25, 0.5, 0.75, 1].map((share) => (
          <span key={share}>{range.from.clone().add(share * (range.to.valueOf() - range.from.valueOf()), "ms").format("HH:mm")}</span>
        ))}
      </div>
      <div style={{ display: "flex", gap: 12 }}>
        {[...states].map(([text, color]) => (
          <span key={text} style={{ display: "inline-flex", alignItems: "center", gap: 4 }}>
            <span style={{ width: 14, height: 4, background: color }} />
            {text}
          </span>
        ))}
      </div>
    </div>
  );
}

function measure(text, theme) {
  const ctx = document.createElement("canvas").getContext("2d");
  ctx.font = `12px ${theme.typography.fontFamily}`;
  return ctx.measureText(text).width;
}

// Moments of one state that follow each other are one stretch.
function merge({ fields: [time, value] }) {
  const stretches = [];
  const step = time.config.interval;
  time.values.forEach((from, index) => {
    const shown = value.display(value.values[index]);
    const last = stretches.at(-1);
    if (last && last.text === shown.text && from <= last.to + step / 2) last.to = from + step;
    else stretches.push({ from, to: from + step, text: formattedValueToString(shown), color: shown.color });
  });
  return stretches;
}
