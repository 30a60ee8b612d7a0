//! Names in programs, derived from Rust names.
//!
//! Must not look at anything but the name.

use proc_macro2::Ident;
use syn::ext::IdentExt;

/// The name of an operator: `MatmulV2` and `MatmulV2Op` become `matmul_v2`.
pub(crate) fn operator(ident: &Ident) -> String {
    let name = ident.unraw().to_string();
    snake(name.strip_suffix("Op").filter(|short| !short.is_empty()).unwrap_or(&name))
}

/// The name of a slot: `param_out` becomes `ParamOut`.
pub(crate) fn slot(ident: &Ident) -> String {
    pascal(&ident.unraw().to_string())
}

/// The name of an attribute or block: as in Rust, without `r#`.
pub(crate) fn attribute(ident: &Ident) -> String {
    ident.unraw().to_string()
}

fn snake(name: &str) -> String {
    let mut snake = String::new();
    for (i, c) in name.chars().enumerate() {
        if c.is_uppercase() && i > 0 {
            snake.push('_');
        }
        snake.extend(c.to_lowercase());
    }
    snake
}

fn pascal(name: &str) -> String {
    let mut pascal = String::new();
    for word in name.split('_') {
        let mut chars = word.chars();
        pascal.extend(chars.next().into_iter().flat_map(char::to_uppercase));
        pascal.push_str(chars.as_str());
    }
    pascal
}

#[cfg(test)]
mod tests {
    use super::{pascal, snake};

    #[test]
    fn operators_are_snake_case() {
        for (rust, wire) in [
            ("Softmax", "softmax"),
            ("MatmulV2", "matmul_v2"),
            ("TopKV2", "top_k_v2"),
            ("MulGradGrad", "mul_grad_grad"),
        ] {
            assert_eq!(snake(rust), wire);
        }
    }

    #[test]
    fn slots_are_pascal_case() {
        for (rust, wire) in
            [("x", "X"), ("param_out", "ParamOut"), ("x_shape", "XShape"), ("moment1", "Moment1")]
        {
            assert_eq!(pascal(rust), wire);
        }
    }
}
