//! The macro `#[register_op]` of autobwd: parsing, checks and expansion.
//!
//! Must not know any operator, nor how operators are used.
//!
//! One file a step: `args`, `ast` and `attr` parse; `check` holds the rules that need more than one token; `expand` and
//! `docs` generate; `fallback` suppresses follow-up errors of a mistake; `ctxt` collects mistakes, and panics if they
//! are never reported. `expand` makes no decisions: generated code is conversions only, with loops and messages in
//! library functions.

mod args;
mod ast;
mod attr;
mod check;
mod ctxt;
mod docs;
mod expand;
mod fallback;
mod group;
mod literal;
mod name;
mod options;
mod read;
mod selection;
mod span;
mod text;
mod types;

use proc_macro2::TokenStream;
use quote::quote;
use syn::{DeriveInput, Error, Item, ItemStruct};

use crate::{args::MacroArgs, ast::OperatorDecl, ctxt::ErrorSink};

/// Makes a struct an operator.
///
/// The struct is generic over the type of its slot values: `Scale`, which is `Scale<Var>`, describes the operator in a
/// program, the shape rule runs on `Scale<Meta>`, the kernel on `Scale<Buf<'_>>`, and a formula on one element,
/// `Scale<F>` with `F: Float`.
///
/// ```standalone_crate
/// use autobwd::{Buf, Cx, Float, Infer, Kernel, Meta, NoGrad, Pointwise, Result, Var, register_op};
///
/// /// `out = scale · x`.
/// #[register_op(grad = ScaleGrad)]
/// pub struct Scale<V = Var> {
///     /// Any shape.
///     #[input]
///     pub x: V,
///     /// Same shape as `x`.
///     #[output(inplace = x)]
///     pub out: V,
///     /// The factor.
///     #[attr(default = 1.0)]
///     pub scale: f32,
/// }
/// impl Infer for Scale<Meta> {
///     fn infer(&mut self) -> Result<()> {
///         self.out.like(&self.x);
///         Ok(())
///     }
/// }
/// impl Kernel for Scale<Buf<'_>> {
///     fn run(&mut self, _: &Cx) -> Result<()> {
///         for value in self.out.inout::<f32>(&self.x)?.copied() {
///             *value *= self.scale;
///         }
///         Ok(())
///     }
/// }
///
/// /// `dx = scale · dout`.
/// #[register_op(grad = NoGrad, pointwise)]
/// pub struct ScaleGrad<V = Var> {
///     /// Gradient of `out`.
///     #[input("Out@GRAD")]
///     pub dout: V,
///     /// Gradient of `x`.
///     #[output("X@GRAD", inplace = dout)]
///     pub dx: V,
///     /// As in `scale`.
///     #[attr(default = 1.0)]
///     pub scale: f32,
/// }
/// impl<F: Float> Pointwise for ScaleGrad<F> {
///     fn eval(&mut self) {
///         self.dx = self.dout * F::from(self.scale);
///     }
/// }
/// ```
///
/// # Arguments
///
/// | argument | meaning |
/// |---|---|
/// | `grad = Type` | the gradient rule, see below; mandatory |
/// | `grad_of = Type` | it is the gradient operator of that operator, and inherits its declarations, see below |
/// | `name = ".."` | the operator's name in programs; by default, `MatmulV2` and `MatmulV2Op` are `matmul_v2` |
/// | `pointwise` | a formula for one element, `impl<F: Float> Pointwise`, replaces shape rule and kernel |
/// | `kernel` | a `pointwise` operator also has a shape rule and a kernel, for all dtypes; the formula runs when it is fused with elementwise neighbours, in the floating point dtype of one of its slots, to which other dtypes are converted, bool to 1 and 0 |
/// | `composed` | there is no kernel: `impl Composition` says which operators run in its place; besides, there is a shape rule, and any gradient rule |
/// | `broadcast` | the formula's inputs broadcast against each other |
/// | `integers` | there is also a formula for int32 and int64: `PointwiseInteger` |
/// | `decomposed` | `impl Decompose` gives equivalent elementwise operators, in addition to the kernel, so that it can be fused with its neighbours |
/// | `inferred` | for a gradient operator with a kernel or a composition: its shape rule is inferred from the shape rule of the forward operator, whose inputs it reads |
/// | `infallible` | the kernel never fails on inputs that the shape rule accepts. A step commits as a whole: values of the scope that it overwrites before a kernel that may fail are copied first, in each run. Operators of backward passes are declared so, that in-place updates before them need no copy; formulas never fail |
/// | `any_dtype` | the kernel moves or compares elements of every dtype, and computes nothing, so that 16-bit floating point numbers reach it as they are; every other kernel gets them as `f32`, and its results are rounded |
/// | `factors` | the kernel multiplies its inputs by `Cx::product`, so that 16-bit floating point numbers reach it as they are; its results are `f32`, and rounded |
/// | `halves` | the kernel widens 16-bit floating point numbers and rounds its results itself: both reach it as they are |
/// | `elementwise_update` | an update of a parameter that treats every element alone: with a part of parameter, gradient and state in its slots, it computes that part of the result, so parts may be on different ranks |
/// | `primitive` | backends have a rule for it: neither a formula nor a composition says what it means |
/// | `peephole = Next` | `impl Peephole<Next>` gives one operator that replaces this one and a `Next` that reads its result |
///
/// | `grad = ..` | meaning |
/// |---|---|
/// | an operator | one gradient operator, connected by slot names: it reads inputs (`X`), outputs (`Out`) and gradients of outputs (`Out@GRAD`), and writes gradients of inputs (`X@GRAD`); it gets the attributes that it also declares |
/// | a rule | a type with `impl GradRule<Scale>`, which emits operators |
/// | a function | `fn scale_gradient(fwd: &Scale, g: &mut GradCx<'_>)`, which emits operators; its name starts with a lower-case letter |
/// | `Derived` | one gradient operator, derived from the formula |
/// | `DerivedFromInputs` | the same, without the outputs among its slots |
/// | `Composed` | the gradient of the operator's composition |
/// | `SelfAdjoint` | for an operator that is linear in one input and its own adjoint (a mask, a flip): the operator itself |
/// | `Multilinear` | for a gradient operator whose forward operator is linear in each input that has a gradient: both operators again |
/// | `NoGrad` | none; requiring it is an error |
/// | `ZeroGrad` | zero everywhere |
///
/// The compiler checks that the operator can supply all slots and attributes of its gradient operator, and that defaults
/// are equal.
///
/// # Gradient operators
///
/// With `grad_of = Scale`, fields have the names of those of `Scale`, and inherited declarations are omitted: a field
/// of type `V` is an input unless it is marked `#[output]`, any other is an attribute. `x` is the slot of that name,
/// `dx` its gradient; an attribute has the default and bounds of the forward operator's.
/// ```standalone_crate
/// # use autobwd::{Float, NoGrad, Pointwise, Var, register_op};
/// # #[register_op(grad = TripleGrad, pointwise)]
/// # pub struct Triple<V = Var> { #[input] pub x: V, #[output] pub out: V, #[attr(default = 3.0)] pub by: f64 }
/// # impl<F: Float> Pointwise for Triple<F> { fn eval(&mut self) { self.out = self.x * F::from(self.by); } }
/// /// `dx = dout * by`
/// #[register_op(grad_of = Triple, grad = NoGrad, pointwise)]
/// pub struct TripleGrad<V = Var> {
///     pub dout: V,
///     #[output(inplace = dout)]
///     pub dx: V,
///     pub by: f64,
/// }
/// # impl<F: Float> Pointwise for TripleGrad<F> { fn eval(&mut self) { self.dx = self.dout * F::from(self.by); } }
/// ```
/// An incoming gradient that may be missing is an `Option<V>` input, which is then empty; a gradient that may be
/// unwanted is an `Option<V>` output.
///
/// With `inferred`, the shape rule is also omitted: the gradient operator rejects what the forward operator rejects.
/// The forward shape rule gives the types of the outputs and of their gradients; the gradient of an input has the
/// input's type, which is a floating point number. An input that the gradient operator does not read must be
/// recoverable: it must read an output declared `like` that input, or that output's gradient. Each computed gradient
/// costs as much as the forward operator.
///
/// # Fields
///
/// Every field has one role. A name in quotes, `#[input("Out@GRAD")]`, is the name in programs; by default, a slot has
/// the field's name in PascalCase (`param_out` is `ParamOut`), an attribute or block the field's name.
///
/// | role | type | the field is |
/// |---|---|---|
/// | `#[input]` | `V`, `Option<V>`, `Vec<V>`, `Vec<Option<V>>` | an input: one variable, at most one, a list, a list with holes |
/// | `#[output]` | the same | an output |
/// | `#[scratch(like = x)]` | `V` | scratch memory of the kernel, see below |
/// | `#[attr]` | `bool`, `i32`, `i64`, `f32`, `f64`, `String`, a `Vec` of these, `DType`, an `attr_enum!` | a constant of the operator |
/// | `#[attrs]` | a struct with `#[derive(Attrs)]` | attributes that several operators share |
/// | `#[block]` | `BlockId`, `Vec<BlockId>` | a block that the operator runs; `impl Control` replaces shape rule and kernel |
///
/// | option | of | meaning |
/// |---|---|---|
/// | `shape_only` | `#[input]` | only its shape is needed; its memory may be freed early |
/// | `constant` | `#[input]` | the shape rule and the kernel read its elements with `constant()`; its value must follow from shapes and attributes, and is computed when a program is planned, not when it runs |
/// | `checked` | `#[input]` | only elements of `checked` inputs, such as indices, can make the kernel fail; the gradient, and a copy of the operator, accept what the operator has accepted |
/// | `array` | `#[input]`, `#[output]` | it may hold a tensor array |
/// | `sparse` | `#[input]` | it may be row-sparse, as sparse gradients are; for a `pointwise` operator, `impl Kernel` then runs in place of the formula |
/// | `inplace = x` | `#[output]` | it may share the memory of the input `x` |
/// | `like = x` | `#[scratch]` | it has dtype and shape of that input or output, which holds one variable |
/// | `like = x` | `#[output]` | it has dtype and shape of `x`, unless the shape rule sets others; if all outputs are `like` an input, that is the shape rule, and a formula sums contributions along broadcast dimensions |
/// | `default = value` | `#[attr]` | the value if a program sets none; strings and lists as literals, `"NCHW"`, `[1, 1]` |
/// | `min = limit`, `max = limit` | `#[attr]` | inclusive bounds |
/// | `above = limit`, `below = limit` | `#[attr]` | exclusive bounds |
///
/// # Scratch memory
///
/// A kernel must not allocate. Memory for intermediate results is a field with the dtype and shape of a slot. The
/// kernel writes and reads it as an output; its initial content is arbitrary.
/// ```standalone_crate
/// use autobwd::{Buf, Cx, Kernel, NoGrad, Result, Var, register_op};
///
/// /// `out = x² / Σ x²`
/// #[register_op(grad = NoGrad)]
/// pub struct Shares<V = Var> {
///     /// Any shape.
///     #[input]
///     pub x: V,
///     /// Same shape as `x`.
///     #[output(like = x)]
///     pub out: V,
///     /// `x²`
///     #[scratch(like = x)]
///     pub squares: V,
/// }
/// impl Kernel for Shares<Buf<'_>> {
///     fn run(&mut self, _: &Cx) -> Result<()> {
///         let squares = self.squares.slice_mut::<f32>()?;
///         squares.iter_mut().zip(self.x.slice::<f32>()?).for_each(|(square, x)| *square = x * x);
///         let sum: f32 = squares.iter().sum();
///         self.out.slice_mut::<f32>()?.iter_mut().zip(squares).for_each(|(out, square)| *out = *square / sum);
///         Ok(())
///     }
/// }
/// ```
/// The field is not part of programs. In a struct literal, it has the value of an output: `New`, `out()`, or
/// `Var::EMPTY` in a description. `Cx::scratch` lends memory of another size, for each worker say.
///
/// # Optional slots
///
/// With the trait `OptionalBuf` in scope, a kernel gets the elements of an `Option<V>` in one line:
/// `self.norm.slice_mut::<T>()?` is `None` if the slot is empty.
///
/// # Expansion
///
/// The registered operator, its conversions from and to `OpDesc`, and, if the struct is documented, tables of slots and
/// attributes in its documentation.
///
/// A build with the environment variable `AUTOBWD_OPERATORS` registers only the operators that it names, separated by
/// commas or white space.
#[proc_macro_attribute]
pub fn register_op(args: proc_macro::TokenStream, item: proc_macro::TokenStream) -> proc_macro::TokenStream {
    let item = syn::parse_macro_input!(item as Item);
    match item {
        Item::Struct(item) => operator(args.into(), item).into(),
        other => {
            let error = Error::new(
                proc_macro2::Span::call_site(),
                "`#[register_op]` belongs on a struct, whose fields are the slots and attributes",
            );
            let error = error.into_compile_error();
            quote!(#other #error).into()
        }
    }
}

/// Makes a struct a group of attributes for several operators: see the trait `Attrs`.
///
/// Its fields are marked `#[attr]`, with the same options as attributes of operators. If each has a default, the struct
/// implements `Default`. Each field has a setter of its name: `ConvAttrs::default().strides([2, 2])`.
#[proc_macro_derive(Attrs, attributes(attr))]
pub fn derive_attrs(item: proc_macro::TokenStream) -> proc_macro::TokenStream {
    let item = syn::parse_macro_input!(item as DeriveInput);
    group::derive(&item).into()
}

fn operator(args: TokenStream, item: ItemStruct) -> TokenStream {
    let cx = ErrorSink::new();
    let args = MacroArgs::read(args, &cx);
    let op = OperatorDecl::read(&item, &args, &cx);
    check::check(&op, &cx);

    let mut cleaned = item.clone();
    attr::strip(&mut cleaned);
    match cx.check() {
        Ok(()) => {
            // An undocumented struct stays undocumented, for `missing_docs`.
            if !op.doc.is_empty() {
                cleaned.attrs.extend(docs::reference(&op).iter().map(docs::attribute));
            }
            for (field, read) in cleaned.fields.iter_mut().zip(&op.fields) {
                let doc = docs::of_field(read, &op);
                if docs::text(&field.attrs).is_empty() && !doc.is_empty() {
                    field.attrs.push(docs::attribute(&doc));
                }
            }
            let generated = expand::operator(&op);
            quote!(#cleaned #generated)
        }
        Err(errors) => {
            fallback::mend_parameter(&mut cleaned, &op);
            let (errors, impls) = (errors.into_compile_error(), fallback::impls(&op, &cleaned));
            quote!(#cleaned #errors #impls)
        }
    }
}
