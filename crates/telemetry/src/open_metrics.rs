//! The page in OpenMetrics 1.0, made from the Prometheus text format.
//!
//! The recorder writes only the latter. The differences: a counter's family has no `_total`, bounds
//! of buckets are floating-point numbers, there are no blank lines, and the end is marked.

/// The page of this Prometheus page.
pub(super) fn from_prometheus(page: &str) -> String {
    let mut out = String::with_capacity(page.len() + 64);
    // HELP comes before TYPE, so a family's lines are written when its type is known.
    let mut help: Option<(&str, &str)> = None;
    for line in page.lines().filter(|line| !line.is_empty()) {
        if let Some((name, text)) = line.strip_prefix("# HELP ").and_then(|l| l.split_once(' ')) {
            help = Some((name, text));
        } else if let Some((name, kind)) =
            line.strip_prefix("# TYPE ").and_then(|l| l.split_once(' '))
        {
            let family = match kind {
                "counter" => name.strip_suffix("_total").unwrap_or(name),
                _ => name,
            };
            out.extend(["# TYPE ", family, " ", kind, "\n"]);
            if let Some((_, text)) = help.take().filter(|(of, _)| *of == name) {
                out.extend(["# HELP ", family, " ", text, "\n"]);
            }
        } else {
            push_sample(&mut out, line);
        }
    }
    out.push_str("# EOF\n");
    out
}

/// A sample; a whole bound of a bucket gets its `.0`.
fn push_sample(out: &mut String, line: &str) {
    const BOUND: &str = "le=\"";
    if let Some((before, rest)) = line.split_once(BOUND)
        && let Some((bound, after)) = rest.split_once('"')
        && bound.bytes().all(|byte| byte.is_ascii_digit())
    {
        out.extend([before, BOUND, bound, ".0\"", after, "\n"]);
    } else {
        out.extend([line, "\n"]);
    }
}
