//! The source text of generated operators.

use std::fmt::Write;

/// Contents of a generated crate.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum SourceContent {
    /// Operators: every other one with a gradient written by hand, the others with `grad = Derived`.
    Operators,
    /// The same structs and formulas without any attribute.
    Structs,
}

/// The library with `operators` operators.
pub fn library(content: SourceContent, operators: usize) -> String {
    let mut text = String::from("//! Generated.\n#![allow(unused_imports)]\n");
    text += "use autobwd::{Derived, Expr, Float, New, NoGrad, Pointwise, Result, Var, check::*, emit, register_op};\n";
    for i in 0..operators {
        match content {
            SourceContent::Operators => operator(&mut text, i),
            SourceContent::Structs => structs(&mut text, i),
        }
    }
    text
}

/// The number of registered operators of such a library: with hand-written gradients and three derived operators for
/// each derived gradient, up to third order.
pub fn linked(operators: usize) -> usize {
    let derived = operators / 2;
    operators + (operators - derived) + 3 * derived
}

/// A `main` that prints the number of operators and the microseconds of the first access to the registry.
pub fn main(library: &str) -> String {
    format!(
        r#"use {library} as _;
fn main() {{
    let start = std::time::Instant::now();
    let linked = autobwd::OpInfoMap::linked().map_or(0, |map| map.len());
    println!("{{linked}} {{}}", start.elapsed().as_secs_f64() * 1e6);
}}
"#
    )
}

/// Different formulas, as in real operator crates.
fn formula(i: usize) -> String {
    let k = 0.5 + i as f64 / 64.0;
    match i / 2 % 4 {
        0 => format!("self.x * (self.x * {k:?} * F::from(self.beta)).sigmoid()"),
        1 => format!("(self.x * {k:?}).tanh() * F::from(self.beta)"),
        2 => format!("F::select(self.x.gt(F::from(0.0)), self.x, self.x * {k:?}) * F::from(self.beta)"),
        _ => format!("((self.x * F::from(self.beta)).exp() + {k:?}).log()"),
    }
}

fn by_hand(i: usize) -> bool {
    i.is_multiple_of(2)
}

fn operator(text: &mut String, i: usize) {
    let gradient = if by_hand(i) { format!("Op{i}Grad") } else { "Derived".into() };
    let formula = formula(i);
    let _ = write!(
        text,
        r#"
/// An activation.
#[register_op(grad = {gradient}, pointwise)]
pub struct Op{i}<V = Var> {{
    /// Any shape.
    #[input]
    pub x: V,
    /// Same shape as `x`.
    #[output(inplace = x)]
    pub out: V,
    /// Steepness.
    #[attr(default = 1.0, above = 0.0)]
    pub beta: f32,
}}
impl<F: Float> Pointwise for Op{i}<F> {{
    fn eval(&mut self) {{
        self.out = {formula};
    }}
}}
autobwd::samples!(Op{i}, [Op{i} {{ x: uniform([2, 3]), out: out(), beta: 1.5 }}]);

/// The activation of an expression.
#[track_caller]
pub fn op{i}(x: &Expr, beta: f32) -> Result<Expr> {{
    emit(Op{i} {{ x: x.into(), out: New, beta }}).out
}}
"#
    );
    if by_hand(i) {
        gradient_operator(text, i);
    }
}

fn gradient_operator(text: &mut String, i: usize) {
    let formula = formula(i);
    let _ = write!(
        text,
        r#"
/// Its gradient.
#[register_op(grad = NoGrad, pointwise)]
pub struct Op{i}Grad<V = Var> {{
    /// Input of the forward operator.
    #[input]
    pub x: V,
    /// Gradient of its output.
    #[input("Out@GRAD")]
    pub dout: V,
    /// Gradient of its input.
    #[output("X@GRAD", inplace = dout)]
    pub dx: V,
    /// Steepness.
    #[attr(default = 1.0, above = 0.0)]
    pub beta: f32,
}}
impl<F: Float> Pointwise for Op{i}Grad<F> {{
    fn eval(&mut self) {{
        self.dx = self.dout * ({formula});
    }}
}}
"#
    );
}

/// The operator's struct and formula without any use of autobwd except its number type.
fn structs(text: &mut String, i: usize) {
    plain(text, &format!("Op{i}"), &["x", "out"], &format!("self.out = {}", formula(i)));
    if by_hand(i) {
        plain(
            text,
            &format!("Op{i}Grad"),
            &["x", "dout", "dx"],
            &format!("self.dx = self.dout * ({})", formula(i)),
        );
    }
}

fn plain(text: &mut String, name: &str, slots: &[&str], assignment: &str) {
    let slots: String =
        slots.iter().map(|slot| format!("    /// Any shape.\n    pub {slot}: V,\n")).collect();
    let _ = write!(
        text,
        r#"
/// An activation.
pub struct {name}<V = Var> {{
{slots}    /// Steepness.
    pub beta: f32,
}}
impl<F: Float> Pointwise for {name}<F> {{
    fn eval(&mut self) {{
        {assignment};
    }}
}}
"#
    );
}
