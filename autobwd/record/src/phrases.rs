//! Phrases that name steps and values.

/// Names steps, at least one.
pub(crate) fn steps(first: u64, last: u64) -> String {
    match first == last {
        true => format!("step {last}"),
        false => format!("steps {first} to {last}"),
    }
}

/// Names the steps in which a difference arose that is found at a step, after a last confirmed one.
pub(crate) fn between(after: u64, step: u64) -> String {
    match step.saturating_sub(after) {
        0 | 1 => format!("at step {step}"),
        _ => format!("between steps {} and {step}", after + 1),
    }
}

/// Says something of values: `` `w` differs ``, `` `w` and 2 other values differ ``.
pub(crate) fn values(names: &[String], singular: &str, plural: &str) -> String {
    match names {
        [] => format!("no value {singular}"),
        [name] => format!("`{name}` {singular}"),
        [name, _] => format!("`{name}` and another value {plural}"),
        [name, others @ ..] => format!("`{name}` and {} other values {plural}", others.len()),
    }
}
