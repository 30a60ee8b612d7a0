//! Arguments of `#[register_op(..)]`.
//!
//! Must not look at the struct.

use proc_macro2::TokenStream;
use syn::{Error, Ident, LitStr, Result, Type, parse::ParseStream, parse_quote};

use crate::{ctxt::ErrorSink, options, text};

const KNOWN: [&str; 17] = [
    "grad",
    "grad_of",
    "name",
    "pointwise",
    "kernel",
    "composed",
    "broadcast",
    "integers",
    "decomposed",
    "inferred",
    "infallible",
    "any_dtype",
    "factors",
    "halves",
    "elementwise_update",
    "peephole",
    "primitive",
];
const TAKES: &str = "`grad = Type`, `grad_of = Type`, `name = \"..\"`, `pointwise`, `kernel`, `composed`, `broadcast`, `integers`, `decomposed`, `inferred`, `infallible`, `any_dtype`, `factors`, `halves`, `elementwise_update`, `peephole = Type` and `primitive`";

pub(crate) struct MacroArgs {
    /// The gradient rule. After a mistake, which is reported, a placeholder that is not expanded.
    pub(crate) grad: Type,
    /// The forward operator of a gradient operator.
    pub(crate) grad_of: Option<Type>,
    /// The name in programs, if the author sets one.
    pub(crate) name: Option<LitStr>,
    pub(crate) pointwise: bool,
    /// `kernel`, as written.
    pub(crate) kernel: Option<Ident>,
    /// `composed`, as written.
    pub(crate) composed: Option<Ident>,
    /// `broadcast`, as written.
    pub(crate) broadcast: Option<Ident>,
    /// `integers`, as written.
    pub(crate) integers: Option<Ident>,
    /// `decomposed`, as written.
    pub(crate) decomposed: Option<Ident>,
    /// `inferred`, as written.
    pub(crate) inferred: Option<Ident>,
    /// `infallible`, as written.
    pub(crate) infallible: Option<Ident>,
    /// `any_dtype`, as written.
    pub(crate) any_dtype: Option<Ident>,
    /// `factors`, as written.
    pub(crate) factors: Option<Ident>,
    /// `halves`, as written.
    pub(crate) halves: Option<Ident>,
    /// `elementwise_update`, as written.
    pub(crate) elementwise_update: Option<Ident>,
    /// The operator that one operator replaces together with this one.
    pub(crate) peephole: Option<Type>,
    /// `primitive`, as written.
    pub(crate) primitive: Option<Ident>,
}

#[derive(Default)]
struct ParsedArg {
    grad: Option<Type>,
    grad_of: Option<Type>,
    name: Option<LitStr>,
    pointwise: Option<()>,
    kernel: Option<Ident>,
    composed: Option<Ident>,
    broadcast: Option<Ident>,
    integers: Option<Ident>,
    decomposed: Option<Ident>,
    inferred: Option<Ident>,
    infallible: Option<Ident>,
    any_dtype: Option<Ident>,
    factors: Option<Ident>,
    halves: Option<Ident>,
    elementwise_update: Option<Ident>,
    peephole: Option<Type>,
    primitive: Option<Ident>,
    tried_grad: bool,
    tried_pointwise: bool,
}

impl MacroArgs {
    pub(crate) fn read(tokens: TokenStream, cx: &ErrorSink) -> MacroArgs {
        let mut given = ParsedArg::default();
        options::read_each(tokens, cx, &mut |input| given.read_option(input));
        if given.grad.is_none() && !given.tried_grad {
            cx.missing(
                "the gradient is missing; write `grad = ..` with an operator, a gradient rule, a function, `Derived`, `NoGrad` or `ZeroGrad`",
            );
        }
        let grad = given.grad.unwrap_or_else(|| parse_quote!(::autobwd::__private::NoGrad));
        let ParsedArg {
            grad_of,
            name,
            tried_pointwise: pointwise,
            kernel,
            composed,
            broadcast,
            integers,
            decomposed,
            inferred,
            infallible,
            any_dtype,
            factors,
            halves,
            elementwise_update,
            peephole,
            primitive,
            ..
        } = given;
        MacroArgs {
            grad,
            grad_of,
            name,
            pointwise,
            kernel,
            composed,
            broadcast,
            integers,
            decomposed,
            inferred,
            infallible,
            any_dtype,
            factors,
            halves,
            elementwise_update,
            peephole,
            primitive,
        }
    }
}

impl ParsedArg {
    fn read_option(&mut self, input: ParseStream<'_>) -> Result<()> {
        let key = options::key(input)?;
        let key_text = key.to_string();
        // A misspelt option counts as given, so that its absence is not reported, too.
        let meant = text::nearest(&key_text, &KNOWN);
        match meant {
            Some("grad") => self.tried_grad = true,
            Some("pointwise") => self.tried_pointwise = true,
            _ => {}
        }
        if let Some(flag) = self.flag(&key_text) {
            options::flag(&key, input)?;
            return options::set(flag, &key, key.clone());
        }
        match key_text.as_str() {
            "grad" => options::set(&mut self.grad, &key, options::value(&key, "a type", input)?),
            "grad_of" => options::set(&mut self.grad_of, &key, options::value(&key, "an operator", input)?),
            "name" => {
                let name: LitStr = options::value(&key, "a name in quotes", input)?;
                not_empty(&name)?;
                options::set(&mut self.name, &key, name)
            }
            "pointwise" => {
                options::flag(&key, input)?;
                options::set(&mut self.pointwise, &key, ())
            }
            "peephole" => options::set(&mut self.peephole, &key, options::value(&key, "an operator", input)?),
            _ => {
                // The type is parsed and used, otherwise its import would be reported as unused.
                if meant == Some("grad") {
                    self.grad = options::value(&key, "a type", input).ok();
                }
                Err(options::unknown(&key, "register_op", TAKES, &KNOWN))
            }
        }
    }

    /// An option without a value.
    fn flag(&mut self, key: &str) -> Option<&mut Option<Ident>> {
        Some(match key {
            "kernel" => &mut self.kernel,
            "composed" => &mut self.composed,
            "broadcast" => &mut self.broadcast,
            "integers" => &mut self.integers,
            "decomposed" => &mut self.decomposed,
            "inferred" => &mut self.inferred,
            "infallible" => &mut self.infallible,
            "any_dtype" => &mut self.any_dtype,
            "factors" => &mut self.factors,
            "halves" => &mut self.halves,
            "elementwise_update" => &mut self.elementwise_update,
            "primitive" => &mut self.primitive,
            _ => return None,
        })
    }
}

/// Programs refer to operators, slots and attributes by their names.
pub(crate) fn not_empty(name: &LitStr) -> Result<()> {
    if name.value().is_empty() {
        return Err(Error::new_spanned(name, "a name in programs cannot be empty"));
    }
    Ok(())
}
