//! The rules of all operators, and what is done around them: types of elements, attributes that no rule reads.

use std::{collections::HashMap, rc::Rc, sync::LazyLock};

use autobwd::{DType, Expr, Result};
use autobwd_ops::Math;

use super::{
    Importer, arith,
    node::{NodeContext, NodeOutput, Outputs, refuse},
    sizes::of_sizes,
    value::{ImportedValue, Sources},
};
use crate::{elements::ElementType, proto::NodeProto};

/// Element types that autobwd lacks but can emulate exactly in a wider dtype, for this operator.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Elements {
    /// None: it computes with them.
    Native,
    /// All: it moves, converts or compares elements.
    All,
    /// Integers: results wrap around.
    Integers,
    /// All: results of integers wrap around, those of floating point numbers are exact.
    Wrapping,
}

pub(super) use Elements::{All, Integers, Native, Wrapping};

/// How an operator is imported.
#[derive(Clone, Copy)]
pub(super) struct ImportRule {
    pub(super) elements: Elements,
    pub(super) import: fn(&mut NodeContext<'_, '_>) -> Outputs,
    /// Whether a node of constants is a constant.
    pub(super) folds: bool,
}

/// The rules of a family: operators of `ai.onnx`, or `domain:operator`.
pub(super) type NodeRules = &'static [(&'static str, Elements, fn(&mut NodeContext<'_, '_>) -> Outputs)];

static RULES: LazyLock<HashMap<&'static str, ImportRule>> = LazyLock::new(|| {
    let families: [(NodeRules, bool); FAMILIES] = families();
    let rules = families.into_iter().flat_map(|(rules, folds)| {
        rules.iter().map(move |(op, elements, import)| {
            (*op, ImportRule { elements: *elements, import: *import, folds })
        })
    });
    rules.collect()
});

/// The number of families.
const FAMILIES: usize = 23;

fn families() -> [(NodeRules, bool); FAMILIES] {
    [
        (super::elementwise::RULES, true),
        (super::attention::RULES, true),
        (super::attention::GRAPH_RULES, false),
        (super::constants::RULES, true),
        (super::control::RULES, false),
        (super::detection::RULES, true),
        (super::image::RULES, true),
        (super::index::RULES, true),
        (super::loss::RULES, true),
        (super::matmul::RULES, true),
        (super::norm::RULES, true),
        (super::pad::RULES, true),
        (super::pool::RULES, true),
        (super::quantize::RULES, true),
        (super::random::RULES, false),
        (super::reduce::RULES, true),
        (super::resize::RULES, true),
        (super::rnn::RULES, true),
        (super::sequence::RULES, false),
        (super::shape::RULES, true),
        (super::signal::RULES, true),
        (super::slice::RULES, true),
        (super::windows::RULES, true),
    ]
}

/// The rule of an operator.
pub(super) fn rule(op: &str) -> Option<ImportRule> {
    RULES.get(op).copied()
}

impl Importer<'_> {
    /// The outputs of a node.
    pub(super) fn apply(
        &mut self,
        rule: ImportRule,
        proto: &NodeProto,
        inputs: Vec<Option<ImportedValue>>,
        version: i64,
    ) -> Result<Vec<ImportedValue>> {
        let present = || inputs.iter().flatten();
        present().try_for_each(|value| check_element(rule.elements, value.element, proto.op_type()))?;
        let is_constant = present().all(|value| value.constant().is_some());
        if rule.folds
            && !inputs.is_empty()
            && (is_constant || self.moves_weights(proto, &inputs))
            && let Some(values) = self.fold(rule, proto, &inputs, version)
        {
            return Ok(values);
        }
        let initial = if is_constant { vec![] } else { self.initial_values(rule, proto, &inputs, version) };
        let mut node = NodeContext::new(self, proto, inputs, version);
        let outputs = match of_sizes(&mut node)? {
            Some(output) => vec![output],
            None => (rule.import)(&mut node)?,
        };
        let mut values = finish(&mut node, rule, outputs)?;
        values.iter_mut().zip(initial).for_each(|(value, initial)| value.initial = Some(initial));
        Ok(values)
    }
}

/// The inputs of the model that the inputs of a node depend on.
pub(super) fn sources(inputs: &[Option<ImportedValue>]) -> Sources {
    inputs.iter().flatten().fold(Rc::default(), |all: Sources, value| match (all, &value.sources) {
        (all, own) if own.is_empty() || Rc::ptr_eq(&all, own) => all,
        (all, own) if all.is_empty() => own.clone(),
        (all, own) => Rc::new(all.union(own).cloned().collect()),
    })
}

/// The values of a node that its rule has imported.
pub(super) fn finish(
    node: &mut NodeContext<'_, '_>,
    rule: ImportRule,
    outputs: Vec<NodeOutput>,
) -> Result<Vec<ImportedValue>> {
    if let Some(name) = node.unread().first() {
        return Err(refuse(format!("attribute `{name}` of operator `{}` is not supported", node.op())));
    }
    let (mut values, sources) = (vec![], sources(&node.inputs));
    for (i, output) in outputs.into_iter().enumerate() {
        let name = node.proto.output.get(i).map_or("", String::as_str);
        values.push(match output {
            NodeOutput::Value(value) if value.sources.is_empty() => {
                ImportedValue { sources: sources.clone(), ..value }
            }
            NodeOutput::Value(value) => value,
            NodeOutput::Sizes(sizes) => match sizes.tensor() {
                Some(tensor) => ImportedValue::known(name, ElementType::of(sizes.dtype), tensor?, false),
                None => ImportedValue::sizes(name, sizes),
            },
            NodeOutput::Known(tensor) => {
                let element = output_element(node, i, tensor.dtype())?;
                ImportedValue::known(name, element, tensor, false)
            }
            NodeOutput::Expr(expr) => {
                let element = output_element(node, i, expr.check()?.dtype())?;
                let wraps = matches!(rule.elements, Integers | Wrapping);
                let expr = if wraps { wrap(&expr, element) } else { expr };
                expr.check()?;
                ImportedValue { sources: sources.clone(), ..ImportedValue::computed(name, element, expr) }
            }
        });
    }
    Ok(values)
}

/// Rejects elements that a rule cannot handle exactly.
fn check_element(elements: Elements, element: ElementType, op: &str) -> Result<()> {
    let exact = match elements {
        _ if element.is_native() => true,
        All => element.dtype().is_some(),
        Native => false,
        Integers | Wrapping => element.narrow_integer().is_some(),
    };
    if exact {
        return Ok(());
    }
    Err(refuse(format!("dtype {} is not supported by operator `{op}`", element.name())))
}

/// The type of an output: the one that the rule has set, or that of the first input held in the same dtype.
fn output_element(node: &NodeContext<'_, '_>, i: usize, dtype: DType) -> Result<ElementType> {
    if let Some((_, element)) = node.types.iter().find(|(output, _)| *output == i) {
        return Ok(*element);
    }
    let held = |element: &ElementType| node.dtype(*element).is_ok_and(|held| held == dtype);
    let element = node.inputs.iter().flatten().map(|value| value.element).find(held);
    Ok(element.unwrap_or_else(|| node.importer.element(dtype)))
}

/// Wraps integers around to their type.
pub(super) fn wrap(x: &Expr, element: ElementType) -> Expr {
    let Some((bits, signed)) = element.narrow_integer() else { return x.clone() };
    let full = arith::int_like(x, 1 << bits);
    match signed {
        false => x.remainder(&full),
        true => {
            let half = arith::int_like(x, 1 << (bits - 1));
            &(x + &half).remainder(&full) - &half
        }
    }
}
