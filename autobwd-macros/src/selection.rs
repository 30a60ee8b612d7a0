//! Operators that a build links: all, or the operators that a variable names.
//!
//! Must not look at anything but the name.

/// Names of operators, separated by commas or spaces. Generated code reads it, too, so that Cargo builds a crate again
/// when it changes.
pub(crate) const VARIABLE: &str = "AUTOBWD_OPERATORS";

/// Whether the operator `name` is linked.
pub(crate) fn links(name: &str) -> bool {
    std::env::var(VARIABLE).map_or(true, |names| is_named(name, &names))
}

fn is_named(name: &str, names: &str) -> bool {
    names.split([',', ' ', '\t', '\r', '\n']).any(|named| named == name)
}

#[cfg(test)]
mod tests {
    use super::is_named;

    #[test]
    fn names_are_separated_by_commas_or_white_space() {
        let names = "mul, relu\nrelu_grad,adam";
        assert!(["mul", "relu", "relu_grad", "adam"].iter().all(|name| is_named(name, names)));
        assert!(["mu", "grad", "relu_", ""].iter().all(|name| !is_named(name, "mul,relu_grad")));
    }
}
