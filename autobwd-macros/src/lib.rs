//! The attribute `#[register_op]` of autobwd: parsed, checked, expanded.
//!
//! Must not know any operator, nor what is done with one.

mod args;
mod ast;
mod attr;
mod check;
mod ctxt;
mod docs;
mod expand;
mod fallback;
mod group;
mod name;
mod options;
mod read;
mod span;
mod text;
mod types;

use proc_macro2::TokenStream;
use quote::quote;
use syn::{DeriveInput, Error, Item, ItemStruct};

use crate::{args::Args, ast::Operator, ctxt::Ctxt};

/// Makes a struct an operator.
///
/// The struct is generic over what its slots hold: `Scale`, which is `Scale<Var>`, describes the operator in a program,
/// `Scale<Meta>` is where its shape rule runs, `Scale<Buf<'_>>` is what its kernel runs on, and `Scale<F>` with
/// `F: Float` is one element of a formula.
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
/// | written | means |
/// |---|---|
/// | `grad = Type` | how the gradient comes about, see below; mandatory |
/// | `grad_of = Type` | it is the gradient operator of that operator, and inherits what follows from it, see below |
/// | `name = ".."` | the operator's name in programs; `MatmulV2` and `MatmulV2Op` are `matmul_v2` unless it says otherwise |
/// | `pointwise` | a formula for one element, `impl<F: Float> Pointwise`, takes the place of shape rule and kernel |
/// | `kernel` | of a `pointwise` operator: shape rule and kernel are there, too, for all dtypes; the formula runs among elementwise neighbours, in a type of floating point numbers that one of its slots has; it sees other dtypes converted to that, booleans as 1 and 0 |
/// | `broadcast` | the formula's inputs are broadcast against each other |
/// | `integers` | there is a second formula, for int32 and int64: `PointwiseInteger` |
/// | `decomposed` | beside the kernel, `impl Decompose` says which elementwise operators do the same, so that it fuses with its neighbours |
/// | `inferred` | of a gradient operator with a kernel: its shape rule follows from that of the forward operator, whose inputs it reads |
///
/// | `grad = ..` | means |
/// |---|---|
/// | an operator | one gradient operator, wired by slot names: it reads inputs (`X`), outputs (`Out`) and gradients of outputs (`Out@GRAD`), and writes gradients of inputs (`X@GRAD`); it gets those attributes that it has too |
/// | a rule | a type with `impl GradRule<Scale>`, which emits operators |
/// | `Derived` | one gradient operator, made from the formula |
/// | `DerivedFromInputs` | the same, without the outputs among its slots |
/// | `Composed` | that of the operator's composition |
/// | `SelfAdjoint` | of an operator that is linear in one input and its own adjoint (a mask, a flip): itself |
/// | `Multilinear` | of a gradient operator whose forward operator is linear in each input that has a gradient: both again |
/// | `NoGrad` | there is none, needing it is an error |
/// | `ZeroGrad` | it is zero everywhere |
///
/// That a gradient operator asks for no slot or attribute that the operator cannot supply is checked at compile time.
///
/// # Gradient operators
///
/// With `grad_of = Scale`, fields are named as those of `Scale`, and what follows from `Scale` is not written again: a
/// field that holds `V` is an input unless it is marked `#[output]`, any other is an attribute. `x` is the slot of that
/// name, `dx` its gradient, an attribute has default and bounds of the forward operator's.
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
/// A gradient that need not arrive is an `Option<V>` input, and stays empty where it does not; one that need not be wanted
/// is an `Option<V>` output.
///
/// With `inferred`, no shape rule is written, either: what the forward operator refuses is refused, outputs of that and
/// their gradients have the dtypes and shapes that its shape rule says, and gradients of inputs those of the inputs, which
/// are floating point numbers. Of an input that the gradient operator does not read, it reads an output that is `like`
/// that, or the gradient of one. Each gradient that is computed costs what the forward operator does.
///
/// # Fields
///
/// Every field has one role. A name in quotes, `#[input("Out@GRAD")]`, is the one in programs; otherwise that of a slot
/// is the field's in PascalCase (`param_out` is `ParamOut`), that of an attribute or block is the field's.
///
/// | role | type | the field is |
/// |---|---|---|
/// | `#[input]` | `V`, `Option<V>`, `Vec<V>`, `Vec<Option<V>>` | what the operator reads: one variable, at most one, a list, a list with holes |
/// | `#[output]` | the same | what it writes |
/// | `#[scratch(like = x)]` | `V` | memory that the kernel has to itself while it runs, see below |
/// | `#[attr]` | `bool`, `i32`, `i64`, `f32`, `f64`, `String`, a `Vec` of these, `DType`, an `attr_enum!` | a constant of the operator |
/// | `#[attrs]` | a struct with `#[derive(Attrs)]` | attributes that several operators share |
/// | `#[block]` | `BlockId`, `Vec<BlockId>` | a block that the operator runs; `impl Control` says how, in place of shape rule and kernel |
///
/// | option | of | means |
/// |---|---|---|
/// | `shape_only` | `#[input]` | only its shape is needed; its memory may be freed early |
/// | `array` | `#[input]`, `#[output]` | it may hold a list of tensors |
/// | `sparse` | `#[input]` | it may hold some rows of a tensor, a sparse gradient; of a `pointwise` operator, `impl Kernel` runs then in place of the formula |
/// | `inplace = x` | `#[output]` | it may take over the memory of the input `x` |
/// | `like = x` | `#[scratch]` | it has dtype and shape of that input or output, which holds one variable |
/// | `like = x` | `#[output]` | it has dtype and shape of `x`, before the shape rule sets others; said of all outputs, it is the shape rule, and in a formula contributions along broadcast dimensions are summed |
/// | `default = value` | `#[attr]` | the value when a program gives none; text and lists as literals, `"NCHW"`, `[1, 1]` |
/// | `min = limit`, `max = limit` | `#[attr]` | bounds that the value may reach |
/// | `above = limit`, `below = limit` | `#[attr]` | bounds that it may not reach |
///
/// # Scratch memory
///
/// A kernel allocates nothing. Memory for intermediate results, which nobody else sees, is a field with the dtype and
/// shape of a slot. The kernel writes and reads it as an output; what it holds at first is anything.
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
/// Programs do not know the field. Where the struct is written as a literal, the field gets what an output gets: `New`,
/// `out()`, or `Var::EMPTY` in a description. Memory of another size, for each worker say, is lent by `Cx::scratch`.
///
/// # Optional slots
///
/// With the trait `OptionalBuf` in scope, a kernel takes the elements of an `Option<V>` in one line:
/// `self.norm.slice_mut::<T>()?` is `None` where the slot is empty.
///
/// # What comes from it
///
/// The registered operator, its conversions from and to `OpDesc`, and the tables of slots and attributes in the struct's
/// documentation, provided that it has any.
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

/// Makes a struct a group of attributes, which several operators can have: see the trait of that name.
///
/// Its fields are marked `#[attr]`, with the options that attributes of operators have. Where each has a default, the
/// struct implements `Default`. For each field there is a method of that name, which takes another value for it:
/// `ConvAttrs::default().strides([2, 2])`.
#[proc_macro_derive(Attrs, attributes(attr))]
pub fn derive_attrs(item: proc_macro::TokenStream) -> proc_macro::TokenStream {
    let item = syn::parse_macro_input!(item as DeriveInput);
    group::derive(&item).into()
}

fn operator(args: TokenStream, item: ItemStruct) -> TokenStream {
    let cx = Ctxt::new();
    let args = Args::read(args, &cx);
    let op = Operator::read(&item, &args, &cx);
    check::check(&op, &cx);

    let mut cleaned = item.clone();
    attr::strip(&mut cleaned);
    match cx.check() {
        Ok(()) => {
            // An undocumented struct stays one, for `missing_docs`.
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
