// A value within its bands. Grafana's gauge lives in its application: this one takes its colours and texts from Grafana's code.
import { getActiveThreshold } from "@grafana/data";
import { useTheme2 } from "@grafana/ui";

// In degrees, clockwise from above.
const [FIRST, LAST] = [-125, 125];

/** One gauge, with the name of its series where there are several. */
export function Gauge({ value: { display, field }, showName, width, height }) {
  const theme = useTheme2();
  const name = showName ? 18 : 0;
  const radius = Math.max(Math.min(width / 2, (height - name) / 1.62) - 12, 10);
  const center = { x: width / 2, y: radius + 10 };
  const { min = 0, max = 100 } = field;
  const angle = (number) => FIRST + ((Math.min(Math.max(number, min), max) - min) / (max - min)) * (LAST - FIRST);
  const thick = radius * 0.22;
  const arc = (from, to, at) => <path d={describe(center, at, from, to)} fill="none" />;
  return (
    <svg width={width} height={height} fontFamily={theme.typography.fontFamily} textAnchor="middle">
      <g strokeWidth={thick} stroke={theme.colors.background.secondary}>{arc(FIRST, LAST, radius - thick)}</g>
      {display.color && Number.isFinite(display.numeric) && (
        <g strokeWidth={thick} stroke={display.color}>{arc(FIRST, angle(display.numeric), radius - thick)}</g>
      )}
      {bands(field, min, max, theme).map(({ from, to, color }) => (
        <g key={from} strokeWidth={4} stroke={color}>{arc(angle(from), angle(to), radius - 2)}</g>
      ))}
      <text x={center.x} y={center.y + radius * 0.1} fontSize={radius * 0.36} fontWeight={500} fill={display.color}>
        {`${display.prefix ?? ""}${display.text}${display.suffix ?? ""}`}
      </text>
      {showName && (
        <text x={center.x} y={center.y + radius * 0.78} fontSize={14} fill={theme.colors.text.primary}>{display.title}</text>
      )}
    </svg>
  );
}

function bands({ thresholds, ...field }, min, max, theme) {
  const edges = [min, ...(thresholds?.steps ?? []).map((step) => step.value).filter((edge) => edge > min && edge < max), max];
  return edges.slice(1).map((to, index) => ({
    from: edges[index],
    to,
    color: theme.visualization.getColorByName(getActiveThreshold(edges[index], thresholds.steps).color),
  }));
}

function describe({ x, y }, radius, from, to) {
  const [start, end] = [from, to].map((degrees) => {
    const angle = ((degrees - 90) * Math.PI) / 180;
    return `${x + radius * Math.cos(angle)} ${y + radius * Math.sin(angle)}`;
  });
  return `M ${start} A ${radius} ${radius} 0 ${to - from > 180 ? 1 : 0} 1 ${end}`;
}
