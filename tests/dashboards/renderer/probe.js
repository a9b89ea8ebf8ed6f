// How much of a plot is its data: what is on the canvas beyond axes, grid and thresholds, and before any mark.

window.drawn = {};

/** Count the pixels of a panel's plot that its series or cells have drawn, into `window.drawn`. */
export function countDrawn(config, id) {
  let before;
  // A line at the foot of the plot lies on its edge.
  const read = ({ ctx, bbox }) => ctx.getImageData(bbox.left, bbox.top, bbox.width, bbox.height + 2).data;
  config.addHook("drawAxes", (plot) => {
    before = read(plot);
  });
  config.addHook("draw", (plot) => {
    const after = read(plot);
    let count = 0;
    for (let at = 0; at < after.length; at += 4) {
      if ([0, 1, 2, 3].some((channel) => after[at + channel] !== before[at + channel])) count++;
    }
    window.drawn[id] = count;
  });
}
