// Marks on a graph. Grafana's own live in its application: these are drawn as it draws them.
import { useLayoutEffect } from "react";
import { REGION_FILL_ALPHA, useTheme2 } from "@grafana/ui";

import { countDrawn } from "./probe.js";

const TRIANGLE = 5;

/** What belongs to a graph of its panel: its data are counted, then its marks are drawn. */
export function Marks({ config, id, marks }) {
  const theme = useTheme2();
  useLayoutEffect(() => {
    countDrawn(config, id);
    config.addHook("draw", (plot) => {
      for (const mark of marks) drawMark(plot, mark, theme.visualization.getColorByName(mark.color), devicePixelRatio);
    });
  }, [config, id, marks, theme]);
  return null;
}

// Lines where a mark begins and ends, the stretch between them tinted, and a sign below the axis.
function drawMark(plot, mark, color, ratio) {
  const { ctx, bbox } = plot;
  const [first, last] = [mark.time, mark.timeEnd].map((time) =>
    Math.min(Math.max(plot.valToPos(time, "x", true), bbox.left), bbox.left + bbox.width),
  );
  const bottom = bbox.top + bbox.height;
  ctx.save();
  ctx.strokeStyle = ctx.fillStyle = color;
  if (last > first) {
    ctx.globalAlpha = REGION_FILL_ALPHA;
    ctx.fillRect(first, bbox.top, last - first, bbox.height);
    ctx.globalAlpha = 1;
    ctx.fillRect(first, bottom, last - first, TRIANGLE * ratio);
  }
  ctx.globalAlpha = 0.7;
  ctx.lineWidth = ratio;
  ctx.setLineDash([3 * ratio, 3 * ratio]);
  for (const x of new Set([first, last])) {
    ctx.beginPath();
    ctx.moveTo(x, bbox.top);
    ctx.lineTo(x, bottom);
    ctx.stroke();
  }
  if (last === first) {
    ctx.globalAlpha = 1;
    ctx.beginPath();
    ctx.moveTo(first, bottom);
    ctx.lineTo(first - TRIANGLE * ratio, bottom + TRIANGLE * ratio);
    ctx.lineTo(first + TRIANGLE * ratio, bottom + TRIANGLE * ratio);
    ctx.fill();
  }
  ctx.restore();
}
