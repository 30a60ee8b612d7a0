//! Checks of an operator that need more than one token.
//!
//! Must not change anything: mistakes are reported, and code with mistakes is not expanded.

use syn::{Error, Fields, GenericParam, Ident, TypeParam};

use crate::{
    ast::{AttrLimit, FieldDecl, FieldRole, LimitKind, OperatorDecl},
    attr,
    ctxt::ErrorSink,
    literal::number,
    span, text, types,
};

/// Reports the mistakes of an operator.
pub(crate) fn check(op: &OperatorDecl<'_>, cx: &ErrorSink) {
    fields_have_names(op, cx);
    one_parameter(op, cx);
    fields_are_always_there(op, cx);
    fields_have_roles(op, cx);
    types_fit_roles(op, cx);
    some_slot(op, cx);
    names_are_unique("input", op.inputs(), cx);
    names_are_unique("output", op.outputs(), cx);
    names_are_unique("attribute", op.attrs(), cx);
    partners_are_inputs(op, cx);
    scratch_is_like_a_slot(op, cx);
    scratch_is_of_a_kernel(op, cx);
    kernel_is_beside_a_formula(op, cx);
    broadcast_is_pointwise(op, cx);
    integers_are_beside_one_output(op, cx);
    decomposed_has_a_kernel(op, cx);
    composed_is_alone(op, cx);
    facts_have_a_kernel(op, cx);
    derived_is_pointwise(op, cx);
    inferred_is_of_a_gradient(op, cx);
    pointwise_has_no_lists(op, cx);
    pointwise_has_no_blocks(op, cx);
    constants_are_for_shape_rules(op, cx);
    one_bound_per_side(&op.fields, cx);
    bounds_leave_a_value(&op.fields, cx);
    defaults_are_within_bounds(&op.fields, cx);
}

/// Reports the mistakes of a group of attributes.
pub(crate) fn attributes(fields: &[FieldDecl<'_>], cx: &ErrorSink) {
    names_are_unique("attribute", fields.iter(), cx);
    one_bound_per_side(fields, cx);
    bounds_leave_a_value(fields, cx);
    defaults_are_within_bounds(fields, cx);
}

/// Slots are written and read by name.
fn fields_have_names(op: &OperatorDecl<'_>, cx: &ErrorSink) {
    if !matches!(op.item.fields, Fields::Named(_)) {
        cx.error(
            op.ident,
            format!("an operator has named fields: `pub struct {}<V = Var> {{ .. }}`", op.ident),
        );
    }
}

/// The only type parameter is the type of slot values, and is unbounded.
fn one_parameter(op: &OperatorDecl<'_>, cx: &ErrorSink) {
    let wanted = format!("`pub struct {}<V = Var>`", op.ident);
    let mut found: Option<&TypeParam> = None;
    for param in &op.item.generics.params {
        match param {
            GenericParam::Type(ty) if found.is_none() => found = Some(ty),
            other => cx
                .error(other, format!("an operator has one type parameter, the type of its slots: {wanted}")),
        }
    }
    match found {
        None => cx.error(op.ident, format!("an operator is generic over the type of its slots: {wanted}")),
        Some(param) if !param.bounds.is_empty() => {
            cx.error(&param.bounds, format!("the slot type `{}` has no bounds: {wanted}", param.ident));
        }
        Some(param) if param.default.is_none() => {
            cx.error(param, format!("the slot type `{}` needs a default: {wanted}", param.ident));
        }
        Some(_) => {}
    }
    if let Some(clause) = &op.item.generics.where_clause {
        cx.error(
            clause.where_token,
            format!("the slot type has no bounds, so there is no `where` clause: {wanted}"),
        );
    }
}

/// Generated code names every field in all configurations.
fn fields_are_always_there(op: &OperatorDecl<'_>, cx: &ErrorSink) {
    for field in &op.fields {
        for attr in field.original.attrs.iter().filter(|attr| attr.path().is_ident("cfg")) {
            cx.error(
                attr.path(),
                "an operator has the same fields in every build; `cfg` can only be on the struct",
            );
        }
    }
}

/// Every field has a role. Reading has already reported second roles.
fn fields_have_roles(op: &OperatorDecl<'_>, cx: &ErrorSink) {
    for field in op.fields.iter().filter(|f| f.role.is_none()) {
        match attr::misspelt(field.original) {
            Some((attr, meant)) => {
                let written = text::of_tokens(attr.path());
                cx.error(attr.path(), format!("unknown role `#[{written}]`; did you mean `#[{meant}]`?"));
            }
            None => cx.error(
                field.ident,
                format!(
                    "`{}` has no role; mark it `#[input]`, `#[output]`, `#[scratch]`, `#[attr]`, `#[attrs]` or `#[block]`",
                    field.ident
                ),
            ),
        }
    }
}

/// Slots have the struct's type parameter, attributes and blocks do not. The compiler checks whether programs support
/// the types of attributes.
fn types_fit_roles(op: &OperatorDecl<'_>, cx: &ErrorSink) {
    let param = &op.param;
    // With two parameters, that of slots is unknown.
    if op.item.generics.type_params().count() != 1 {
        return;
    }
    for slot in op.inputs().chain(op.outputs()).filter(|f| types::takes(f.ty, param).is_none()) {
        let known = [format!("{param}"), format!("Option<{param}>"), format!("Vec<{param}>")];
        let message = format!("`{}` cannot be a slot; a slot is", text::of_tokens(slot.ty));
        cx.error(slot.ty, format!("{message} `{}` or `Vec<Option<{param}>>`", known.join("`, `")));
    }
    for (field, _) in op.scratch().filter(|(f, _)| types::takes(f.ty, param) != Some("one")) {
        let message =
            format!("`{}` cannot be scratch memory; its type is `{param}`", text::of_tokens(field.ty));
        cx.error(field.ty, message);
    }
    for attr in op.attrs().filter(|f| types::mentions(f.ty, param)) {
        let message =
            format!("`{}` holds `{param}`, so it is a slot; mark it `#[input]` or `#[output]`", attr.ident);
        cx.error(attr.ty, message);
    }
}

/// An operator without slots would have no effect on a program.
fn some_slot(op: &OperatorDecl<'_>, cx: &ErrorSink) {
    let named = matches!(op.item.fields, Fields::Named(_));
    let could_be_slot = op.fields.iter().any(|f| {
        !matches!(
            f.role,
            Some(FieldRole::Scratch { .. } | FieldRole::Attr { .. } | FieldRole::Attrs | FieldRole::Block)
        )
    });
    if named && !could_be_slot {
        let message = "has neither inputs nor outputs; mark at least one field `#[input]` or `#[output]`";
        cx.error(op.ident, format!("`{}` {message}", op.ident));
    }
}

/// Names in programs are unique on each side of an operator.
fn names_are_unique<'a>(what: &str, fields: impl Iterator<Item = &'a FieldDecl<'a>>, cx: &ErrorSink) {
    let mut seen: Vec<&FieldDecl<'_>> = Vec::new();
    for field in fields {
        match seen.iter().find(|f| f.name == field.name) {
            Some(first) => {
                let message = format!("the name `{}` is taken by the {what} `{}`", field.name, first.ident);
                cx.error(field.named_at(), format!("{message}; give another one in quotes"));
            }
            None => seen.push(field),
        }
    }
}

/// `inplace` and `like` name inputs.
fn partners_are_inputs(op: &OperatorDecl<'_>, cx: &ErrorSink) {
    let inputs: Vec<String> = op.inputs().map(|f| f.ident.to_string()).collect();
    // A field without a role may be meant as an input.
    let may_be_input = |partner: &Ident| {
        op.fields.iter().any(|f| f.ident == partner && matches!(f.role, None | Some(FieldRole::Input { .. })))
    };
    for field in op.outputs() {
        let Some(FieldRole::Output { inplace, like, .. }) = &field.role else { continue };
        for input in inplace.iter().chain(like).filter(|input| !may_be_input(input)) {
            let message =
                format!("`{input}` is not an input of this operator; its inputs: {}", text::list(&inputs));
            cx.error(input, message);
        }
    }
}

/// Scratch memory has dtype and shape of one tensor that is always present.
fn scratch_is_like_a_slot(op: &OperatorDecl<'_>, cx: &ErrorSink) {
    let slots = || op.inputs().chain(op.outputs());
    for (field, like) in op.scratch() {
        let Some(like) = like else {
            let message =
                "is scratch memory of unknown size; name a slot of the same size: `#[scratch(like = ..)]`";
            cx.error(field.ident, format!("`{}` {message}", field.ident));
            continue;
        };
        // A field without a role may be meant as a slot.
        let without_role = |f: &FieldDecl<'_>| f.ident == like && f.role.is_none();
        match op.slot(like).map(|slot| types::takes(slot.ty, &op.param)) {
            None if op.fields.iter().any(without_role) => {}
            None => {
                let names: Vec<String> = slots().map(|f| f.ident.to_string()).collect();
                let known: Vec<&str> = names.iter().map(String::as_str).collect();
                let meant = text::nearest(&like.to_string(), &known);
                let hint = meant.map_or(String::new(), |meant| format!("; did you mean `{meant}`?"));
                let message =
                    format!("`{like}` is not a slot of this operator; its slots: {}", text::list(&known));
                cx.error(like, message + &hint);
            }
            Some(Some(takes)) if takes != "one" => {
                let message =
                    format!("`{like}` takes {takes}; scratch memory needs a slot that is always present");
                cx.error(like, message);
            }
            Some(_) => {}
        }
    }
}

/// Formulas, compositions and blocks have no scratch memory.
fn scratch_is_of_a_kernel(op: &OperatorDecl<'_>, cx: &ErrorSink) {
    for (field, _) in op.scratch().filter(|_| op.pointwise || !op.has_kernel()) {
        let has = match op.composed {
            _ if op.pointwise => "a pointwise operator",
            Some(_) => "a composed operator",
            None => "an operator with a block",
        };
        cx.error(
            field.ident,
            format!("`{}` is scratch memory of a kernel; {has} has no kernel", field.ident),
        );
    }
}

/// Without a formula, there is always a kernel.
fn kernel_is_beside_a_formula(op: &OperatorDecl<'_>, cx: &ErrorSink) {
    if let Some(kernel) = op.kernel.filter(|_| !op.pointwise) {
        cx.error(kernel, "`kernel` accompanies a formula; add `pointwise` or remove it");
    }
}

/// Kernels broadcast their inputs themselves.
fn broadcast_is_pointwise(op: &OperatorDecl<'_>, cx: &ErrorSink) {
    if let Some(broadcast) = op.broadcast.filter(|_| !op.pointwise) {
        cx.error(broadcast, "`broadcast` belongs to formulas; add `pointwise` or remove it");
    }
}

/// An integer formula accompanies a floating point formula with one output, and takes the place of its kernel.
fn integers_are_beside_one_output(op: &OperatorDecl<'_>, cx: &ErrorSink) {
    let Some(integers) = op.integers else { return };
    let sparse = op.inputs().any(|field| matches!(field.role, Some(FieldRole::Input { sparse: true, .. })));
    if !op.pointwise {
        cx.error(integers, "`integers` belongs to formulas; add `pointwise` or remove it");
    } else if op.kernel.is_some() || sparse {
        cx.error(integers, "`integers` generates a kernel, but this operator has another one");
    } else if op.outputs().count() != 1 {
        cx.error(integers, "`integers` is for formulas with one output");
    }
}

/// A formula is fused directly, and so are the operators of a composition.
fn decomposed_has_a_kernel(op: &OperatorDecl<'_>, cx: &ErrorSink) {
    let instead = match op.composed {
        _ if op.pointwise => "a formula is fused as it is",
        Some(_) => "the operators of a composition are fused as they are",
        None => return,
    };
    if let Some(decomposed) = op.decomposed {
        cx.error(decomposed, format!("`decomposed` belongs to operators with a kernel; {instead}"));
    }
}

/// An operator runs in one way.
fn composed_is_alone(op: &OperatorDecl<'_>, cx: &ErrorSink) {
    let other = match op.pointwise {
        true => "a formula",
        false if op.has_block() => "a block",
        false => return,
    };
    if let Some(composed) = op.composed {
        let message =
            format!("a `composed` operator runs by its composition, but this one has {other}; keep one");
        cx.error(composed, message);
    }
}

/// Without a formula, there is nothing to derive from.
fn derived_is_pointwise(op: &OperatorDecl<'_>, cx: &ErrorSink) {
    let derived = ["Derived", "DerivedFromInputs"].iter().any(|name| types::is_named(op.grad, name));
    if !op.pointwise && derived {
        let message = "`Derived` needs a formula; add `pointwise`, or name an operator or a gradient rule";
        cx.push(Error::new(span::last_segment(op.grad), message));
    }
}

/// A formula and a composition have no kernel that could fail, or compute in a dtype.
fn facts_have_a_kernel(op: &OperatorDecl<'_>, cx: &ErrorSink) {
    let has_kernel = op.has_kernel() || op.has_sparse_input() || op.integers.is_some();
    for fact in op.infallible.into_iter().chain(op.any_dtype).chain(op.factors).chain(op.halves) {
        if op.composed.is_some() || op.has_block() || !has_kernel {
            cx.error(fact, format!("`{fact}` belongs to operators with a kernel; this one has none"));
        }
    }
}

/// A shape rule can be inferred from that of a forward operator only.
fn inferred_is_of_a_gradient(op: &OperatorDecl<'_>, cx: &ErrorSink) {
    let Some(inferred) = op.inferred else { return };
    if op.grad_of.is_none() {
        cx.error(
            inferred,
            "`inferred` takes the shape rule of the forward operator; name it with `grad_of = ..`",
        );
    } else if !op.has_shape_rule() {
        cx.error(
            inferred,
            "`inferred` belongs to operators with a kernel; shapes of a formula follow from it",
        );
    }
    for field in op.outputs().filter(|field| field.is_like()) {
        cx.error(field.ident, format!("`{}` has an `inferred` shape; remove `like`", field.ident));
    }
}

/// A formula reads one element of each slot.
fn pointwise_has_no_lists(op: &OperatorDecl<'_>, cx: &ErrorSink) {
    let param = &op.param;
    let is_list =
        |slot: &&FieldDecl<'_>| types::takes(slot.ty, param).is_some_and(|t| t.starts_with("a list"));
    for slot in op.inputs().chain(op.outputs()).filter(|slot| op.pointwise && is_list(slot)) {
        let message = format!("`{}` is a list; a formula takes", slot.ident);
        cx.error(slot.ty, format!("{message} `{param}` or `Option<{param}>`"));
    }
}

/// A formula has no shape rule, and the shape rule of a block is that of its operators.
fn constants_are_for_shape_rules(op: &OperatorDecl<'_>, cx: &ErrorSink) {
    let is_constant =
        |field: &&FieldDecl<'_>| matches!(field.role, Some(FieldRole::Input { constant: true, .. }));
    for field in op.inputs().filter(is_constant).filter(|_| op.pointwise || op.has_block()) {
        let what = if op.pointwise { "a formula" } else { "an operator with a block" };
        let message = format!("`{}` is a constant of a shape rule; {what} has no shape rule", field.ident);
        cx.error(field.ident, message);
    }
}

/// A formula runs no blocks.
fn pointwise_has_no_blocks(op: &OperatorDecl<'_>, cx: &ErrorSink) {
    for field in op.fields.iter().filter(|f| op.pointwise && matches!(f.role, Some(FieldRole::Block))) {
        cx.error(field.ident, format!("`{}` is a block; a pointwise operator has none", field.ident));
    }
}

/// `min` and `above` exclude each other, and so do `max` and `below`.
fn one_bound_per_side(fields: &[FieldDecl<'_>], cx: &ErrorSink) {
    for field in fields {
        let Some(FieldRole::Attr { bounds, .. }) = &field.role else { continue };
        for (i, bound) in bounds.iter().enumerate() {
            let same_side = |kind: LimitKind| kind.is_lower() == bound.kind.is_lower();
            if let Some(first) = bounds[..i].iter().find(|b| same_side(b.kind)) {
                cx.error(
                    &bound.key,
                    format!("`{}` and `{}` bound the same side; keep one", first.key, bound.key),
                );
            }
        }
    }
}

/// Some value is within the bounds. The registry checks limits that are not literals.
fn bounds_leave_a_value(fields: &[FieldDecl<'_>], cx: &ErrorSink) {
    for field in fields {
        let Some(FieldRole::Attr { bounds, .. }) = &field.role else { continue };
        let side = |lower| bounds.iter().find(|bound| bound.kind.is_lower() == lower);
        let (Some(lower), Some(upper)) = (side(true), side(false)) else { continue };
        let (Some(least), Some(most)) = (number(&lower.limit), number(&upper.limit)) else { continue };
        let both_included = lower.kind == LimitKind::Min && upper.kind == LimitKind::Max;
        if least > most || least == most && !both_included {
            let bound = |bound: &AttrLimit| format!("`{} = {}`", bound.key, text::of_tokens(&bound.limit));
            cx.error(&upper.key, format!("no value is within {} and {}", bound(lower), bound(upper)));
        }
    }
}

/// A default is subject to the bounds. Values that are not literals are checked when an operator is described.
fn defaults_are_within_bounds(fields: &[FieldDecl<'_>], cx: &ErrorSink) {
    for field in fields {
        let Some(FieldRole::Attr { default: Some(default), bounds }) = &field.role else { continue };
        let Some(value) = number(default) else { continue };
        let holds = |bound: &AttrLimit, limit: f64| match bound.kind {
            LimitKind::Min => value >= limit,
            LimitKind::Max => value <= limit,
            LimitKind::Above => value > limit,
            LimitKind::Below => value < limit,
        };
        for bound in bounds {
            if number(&bound.limit).is_some_and(|limit| !holds(bound, limit)) {
                let (value, key, limit) =
                    (text::of_tokens(default), &bound.key, text::of_tokens(&bound.limit));
                cx.error(default, format!("the default {value} is out of bounds, `{key} = {limit}`"));
            }
        }
    }
}
