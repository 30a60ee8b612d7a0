//! Number of lines of an operator.

/// Lines that are not blank, comments included, between the markers.
fn lines(source: &str) -> usize {
    let operator = source.lines().skip_while(|line| *line != "// The operator.").skip(1);
    operator
        .take_while(|line| *line != "// End of the operator.")
        .filter(|line| !line.trim().is_empty())
        .count()
}

#[test]
fn operators_are_short() {
    assert_eq!(lines(include_str!("../src/bell.rs")), 25);
    assert_eq!(lines(include_str!("../src/dense.rs")), 60);
    assert_eq!(lines(include_str!("../src/center.rs")), 48);
}
