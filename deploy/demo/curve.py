"""The learning curve as an SVG picture: accuracy per task and the loss on answers, over training tokens."""

WIDTH, HEIGHT, LEFT, TOP, PLOT_W, PLOT_H = 860, 460, 60, 30, 620, 370
COLORS = ["#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd", "#8c564b", "#e377c2", "#7f7f7f", "#bcbd22", "#17becf", "#003f5c"]


def _path(points, color, dashes=""):
    coordinates = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline fill="none" stroke="{color}" stroke-width="2" {dashes} points="{coordinates}"/>'


def _text(x, y, text, anchor="start", color="#333"):
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{color}">{text}</text>'


def _axes(last_tokens):
    parts = [f'<rect x="{LEFT}" y="{TOP}" width="{PLOT_W}" height="{PLOT_H}" fill="none" stroke="#999"/>']
    for share in (0, 25, 50, 75, 100):
        y = TOP + PLOT_H * (1 - share / 100)
        parts += [f'<line x1="{LEFT}" x2="{LEFT + PLOT_W}" y1="{y}" y2="{y}" stroke="#eee"/>', _text(LEFT - 6, y + 4, f"{share} %", "end")]
        x = LEFT + PLOT_W * share / 100
        parts.append(_text(x, TOP + PLOT_H + 18, f"{last_tokens * share / 1e8:.1f} M", "middle"))
    return parts + [_text(LEFT + PLOT_W / 2, TOP + PLOT_H + 40, "training tokens", "middle"), _text(LEFT, TOP - 10, "held-out questions right")]


def svg(points):
    """points: dicts with tokens, loss and accuracy (a share per task)."""
    last = points[-1]["tokens"]
    top_loss = max(p["loss"] for p in points)
    x_of = lambda p: LEFT + PLOT_W * p["tokens"] / last
    parts = _axes(last)
    for index, task in enumerate(points[-1]["accuracy"]):
        color = COLORS[index % len(COLORS)]
        parts.append(_path([(x_of(p), TOP + PLOT_H * (1 - p["accuracy"][task])) for p in points], color))
        parts.append(_text(LEFT + PLOT_W + 14, TOP + 14 + 22 * index, f'{task} {100 * points[-1]["accuracy"][task]:.0f} %', color=color))
    parts.append(_path([(x_of(p), TOP + PLOT_H * (1 - p["loss"] / top_loss)) for p in points], "#000", 'stroke-dasharray="4 4"'))
    parts.append(_text(LEFT + PLOT_W + 14, TOP + PLOT_H, f"loss, top = {top_loss:.2f}", color="#000"))
    return (f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" font-family="sans-serif" font-size="13">'
            f'<rect width="100%" height="100%" fill="white"/>{"".join(parts)}</svg>\n')
