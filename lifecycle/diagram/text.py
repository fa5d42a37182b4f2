"""A view as text: Mermaid, Graphviz dot, a Markdown table."""

from __future__ import annotations

from lifecycle.diagram.view import Counts, Edge, View


def _label(edge: Edge, counts: Counts | None, guard_break: str = " ") -> str:
    events = ", ".join(edge.events)
    guards = f"{guard_break}[{', '.join(edge.guards)}]" if edge.guards else ""
    count = f" ×{edge.taken(counts)}" if counts is not None else ""
    return f"{events}{guards}{count}"


def mermaid(view: View, counts: Counts | None = None) -> str:
    """A Mermaid state diagram. GitHub draws it."""
    lines = ["---", f"title: {view.title}", "---", "stateDiagram-v2", "    direction LR"]
    lines.append(f"    [*] --> {view.states[0].name}")
    for state in view.states:
        lines.append(f"    {state.name}: {state.name}")
    for edge in view.edges:
        note = " (stays)" if edge.internal else ""
        lines.append(f"    {edge.source} --> {edge.dest}: {_label(edge, counts)}{note}")
    for state in view.states:
        if state.final:
            lines.append(f"    {state.name} --> [*]")
        lines += [f"    note right of {state.name}", f"        {state.meaning}"]
        for span in view.spans_of(state.name):
            limits = f" ({', '.join(span.deadlines)})" if span.deadlines else ""
            lines.append(f"        do / {span.activity}{limits}")
        lines.append("    end note")
    return "\n".join(lines) + "\n"


def dot(view: View, counts: Counts | None = None) -> str:
    """A Graphviz digraph."""
    lines = [
        f'digraph "{view.title}" {{',
        "  rankdir=LR; nodesep=0.5; ranksep=0.7;",
        f'  label="{view.title}"; labelloc=t; fontname="Helvetica"; fontsize=18;',
        '  node [shape=box, style="rounded,filled", fillcolor="#eef4f4", color="#2b6f77", fontname="Helvetica"];',
        '  edge [fontname="Helvetica", fontsize=9, color="#555555"];',
        '  start [shape=point, width=0.15, fillcolor="#2b6f77"];',
        f'  start -> "{view.states[0].name}";',
    ]
    for state in view.states:
        activities = "".join(
            f"do / {span.activity}" + (f" ({', '.join(span.deadlines)})" if span.deadlines else "") + "\\l"
            for span in view.spans_of(state.name)
        )
        shape = ', peripheries=2, fillcolor="#f6f6f6"' if state.final else ""
        lines.append(f'  "{state.name}" [label="{state.name}\\n{_wrapped(state.meaning)}\\n{activities}"{shape}];')
    for edge in view.edges:
        style = ', style=dashed, arrowhead=none' if edge.internal else ""
        lines.append(f'  "{edge.source}" -> "{edge.dest}" [label="{_label(edge, counts, chr(92) + "n")}"{style}];')
    lines.append("}")
    return "\n".join(lines) + "\n"


def _wrapped(text: str, width: int = 34) -> str:
    lines, line = [], ""
    for word in text.split():
        if line and len(line) + len(word) >= width:
            lines.append(line)
            line = ""
        line = f"{line} {word}".strip()
    return "\\n".join([*lines, line])


def table(view: View, counts: Counts | None = None) -> str:
    """Transition and span tables in Markdown."""
    title = view.title[:1].upper() + view.title[1:]
    times = " times |" if counts is not None else ""
    rule = "---:|" if counts is not None else ""
    lines = [f"# {title}", "", "| state | means | activities |", "|---|---|---|"]
    for state in view.states:
        name = f"**{state.name}** (final)" if state.final else f"**{state.name}**"
        activities = ", ".join(f"`{span.activity}`" for span in view.spans_of(state.name)) or "–"
        lines.append(f"| {name} | {state.meaning} | {activities} |")
    lines += ["", f"| # | from | event | guards | to |{times}", f"|---:|---|---|---|---|{rule}"]
    for edge in view.edges:
        dest = f"{edge.dest} (stays)" if edge.internal else f"{edge.dest} (entered anew)" if edge.again else edge.dest
        guards = ", ".join(f"`{guard}`" for guard in edge.guards) or "–"
        count = f" {edge.taken(counts)} |" if counts is not None else ""
        events = ", ".join(f"`{event}`" for event in edge.events)
        lines.append(f"| {edge.number} | {edge.source} | {events} | {guards} | {dest} |{count}")
    lines += ["", "Spans, from the outermost to the innermost; they end in the opposite order.", ""]
    lines += ["| activity | from | to the end of | guards | reports | bounded by | what it holds |", f"|{'---|' * 7}"]
    for span in view.spans:
        reports = ", ".join(f"`{event.__name__}`" for event in span.outcomes) or "–"
        limits = ", ".join(f"`{name}`" for name in span.deadlines) or "–"
        shown = {state.name for state in view.states}
        opens = ", ".join(name for name in span.opens if name in shown)
        lasts = ", ".join(name for name in (span.lasts or span.opens) if name in shown)
        guards = ", ".join(f"`{guard}`" for guard in span.when) or "–"
        what = span.meaning or "–"
        lines.append(f"| `{span.activity}` | {opens} | {lasts} | {guards} | {reports} | {limits} | {what} |")
    return "\n".join(lines) + "\n"
