//! Conversion of the author's struct to the operator.

use syn::{Ident, ItemStruct, LitStr, parse_quote};

use crate::{
    args::MacroArgs,
    ast::{FieldDecl, FieldRole, OperatorDecl},
    attr,
    ctxt::ErrorSink,
    docs, name, types,
};

impl<'a> OperatorDecl<'a> {
    pub(crate) fn read(item: &'a ItemStruct, args: &'a MacroArgs, cx: &ErrorSink) -> OperatorDecl<'a> {
        // Without a parameter, which is reported, nothing is expanded.
        let param = item.generics.type_params().next();
        let param = param.map_or_else(|| parse_quote!(V), |param| param.ident.clone());
        let scope =
            if args.grad_of.is_some() { StructKind::GradientOperator(&param) } else { StructKind::Operator };
        let fields = item.fields.iter().filter_map(|field| FieldDecl::read(field, scope, cx)).collect();
        OperatorDecl {
            item,
            ident: &item.ident,
            name: args.name.as_ref().map_or_else(|| name::operator(&item.ident), LitStr::value),
            grad: &args.grad,
            grad_of: args.grad_of.as_ref(),
            pointwise: args.pointwise,
            composed: args.composed.as_ref(),
            kernel: args.kernel.as_ref(),
            broadcast: args.broadcast.as_ref(),
            integers: args.integers.as_ref(),
            decomposed: args.decomposed.as_ref(),
            inferred: args.inferred.as_ref(),
            infallible: args.infallible.as_ref(),
            any_dtype: args.any_dtype.as_ref(),
            factors: args.factors.as_ref(),
            halves: args.halves.as_ref(),
            elementwise_update: args.elementwise_update.as_ref(),
            peephole: args.peephole.as_ref(),
            primitive: args.primitive.as_ref(),
            doc: docs::text(&item.attrs),
            fields,
            param,
        }
    }
}

impl<'a> FieldDecl<'a> {
    /// A field without a name is a mistake, which `check` reports.
    pub(crate) fn read(
        original: &'a syn::Field,
        scope: StructKind<'_>,
        cx: &ErrorSink,
    ) -> Option<FieldDecl<'a>> {
        let ident = original.ident.as_ref()?;
        let (role, literal, marked) = match attr::read(original, cx) {
            Some(mark) => (Some(mark.role), mark.name, true),
            None => (scope.unmarked(original), None, false),
        };
        let is_slot = matches!(role, Some(FieldRole::Input { .. } | FieldRole::Output { .. }));
        let in_gradient = matches!(scope, StructKind::GradientOperator(_));
        let inherited = in_gradient && literal.is_none() && role.is_some() && (is_slot || !marked);
        let default =
            if is_slot && !inherited || role.is_none() { name::slot(ident) } else { name::attribute(ident) };
        let name = literal.as_ref().map_or(default, LitStr::value);
        let doc = docs::first_paragraph(&docs::text(&original.attrs));
        let doc = if doc.is_empty() && !inherited { docs::of_gradient(&name) } else { doc };
        Some(FieldDecl { original, ident, ty: &original.ty, role, name, inherited, literal, doc })
    }
}

/// The meaning of fields without a role.
#[derive(Clone, Copy)]
pub(crate) enum StructKind<'a> {
    /// A mistake, which `check` reports.
    Operator,
    /// The slot or attribute of the forward operator; slots have this parameter.
    GradientOperator(&'a Ident),
}

impl StructKind<'_> {
    fn unmarked(self, field: &syn::Field) -> Option<FieldRole> {
        match self {
            StructKind::GradientOperator(param) if attr::misspelt(field).is_none() => {
                Some(if types::mentions(&field.ty, param) {
                    FieldRole::Input {
                        shape_only: false,
                        constant: false,
                        sparse: false,
                        checked: false,
                        array: false,
                    }
                } else {
                    FieldRole::Attr { default: None, bounds: Vec::new() }
                })
            }
            _ => None,
        }
    }
}
