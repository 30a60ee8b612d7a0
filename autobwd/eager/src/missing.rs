//! Explanation of a missing gradient of a value.
//!
//! The explanation follows the same paths as the backward pass, and computes nothing.

use std::{fmt::Write, sync::Arc};

use rustc_hash::{FxHashMap, FxHashSet};

use super::{queue::GradientTarget, rule::chain_rule};
use autobwd_core::{
    __private::{NodeOrigin, OpCall, TapeNode, internals::*},
    Expr, Result, Role, Var,
    graph_builder::Value,
};

/// Maximum number of named places.
const LISTED: usize = 3;

/// The reason why [`grad`](super::grad) of `outputs` has no gradient for `input`: a sentence, or `None` if it has one.
///
/// ```
/// # use autobwd::Tensor;
/// # use autobwd_ops::Math;
/// use autobwd::tape::missing;
/// # let tape = autobwd::eager();
/// let x = tape.leaf("x", Tensor::scalar(2.5)?);
/// let y = x.detach().square();
/// let why = missing(&[&y], &x)?.expect("a detached value has no gradient");
/// assert!(why.starts_with("`x` has no gradient: the result of `square` at "));
/// assert!(why.ends_with(" was computed from constants only"));
/// assert_eq!(missing(&[&x.square()], &x)?, None);
/// # Ok::<(), autobwd::Error>(())
/// ```
///
/// # Errors
/// Variables of a program; an operator on the path without gradient.
pub fn missing(outputs: &[&Expr], input: &Expr) -> Result<Option<String>> {
    let outputs = outputs.iter().map(|e| e.value().cloned()).collect::<Result<Vec<Value>>>()?;
    let of = input.value()?;
    let why = match own_reason(of) {
        Some(why) => why.to_string(),
        None => match Ancestry::of(&outputs, of).reason(input)? {
            Some(why) => why,
            None => return Ok(None),
        },
    };
    Ok(Some(format!("{of} has no gradient: {why}")))
}

/// The reason why a value never has a gradient, whatever is computed from it.
fn own_reason(value: &Value) -> Option<&'static str> {
    match &value.node().origin {
        _ if value.requires_grad() => None,
        _ if !value.meta().dtype.is_float() => Some("only floating point numbers have gradients"),
        NodeOrigin::Source(_) => Some("it is a constant"),
        NodeOrigin::Computed(_) | NodeOrigin::Applied(_) => {
            Some("it has no history, because it was computed from constants only or without recording")
        }
    }
}

/// The recorded computation of some values, restricted to one input.
struct Ancestry<'a> {
    outputs: &'a [Value],
    input: &'a Value,
    /// Latest first.
    nodes: Vec<&'a TapeNode>,
    /// Computed constants that were read on the path.
    ends: Vec<&'a Value>,
}

impl<'a> Ancestry<'a> {
    fn of(outputs: &'a [Value], input: &'a Value) -> Ancestry<'a> {
        let (mut seen, mut nodes, mut ends) = (FxHashSet::default(), vec![], vec![]);
        let mut rest: Vec<&Value> = outputs.iter().collect();
        while let Some(value) = rest.pop() {
            if !seen.insert((Arc::as_ptr(value.node()), value.out())) {
                continue;
            }
            if matches!(value.node().origin, NodeOrigin::Source(_)) {
                continue;
            }
            if value.requires_grad() {
                nodes.push(&**value.node());
                rest.extend(value.node().inputs());
            } else if !outputs.iter().any(|output| output.same(value)) {
                ends.push(value);
            }
        }
        nodes.sort_unstable_by_key(|node| std::cmp::Reverse((node.number, std::ptr::from_ref(*node))));
        nodes.dedup_by_key(|node| std::ptr::from_ref(*node));
        Ancestry { outputs, input, nodes, ends }
    }

    /// Walks backwards as the backward pass does.
    fn reason(&self, of: &Expr) -> Result<Option<String>> {
        let ops = of.builder().ops()?;
        let goal = GradientTarget::inputs(self.outputs, std::slice::from_ref(self.input));
        let mut arrived: FxHashMap<*const TapeNode, Vec<u32>> = FxHashMap::default();
        let arrive = |arrived: &mut FxHashMap<_, Vec<u32>>, value: &Value| {
            arrived.entry(Arc::as_ptr(value.node())).or_default().push(value.out());
        };
        self.outputs.iter().filter(|v| goal.visits(v)).for_each(|v| arrive(&mut arrived, v));
        let mut cut = None;
        for node in &self.nodes {
            let Some(outs) = arrived.get(&std::ptr::from_ref(*node)) else { continue };
            let wanted: Vec<bool> = node.inputs().iter().map(|input| goal.visits(input)).collect();
            if !wanted.contains(&true) {
                continue;
            }
            let Some(call) = node.call() else {
                // A user-defined function.
                node.inputs().iter().filter(|v| goal.visits(v)).for_each(|v| arrive(&mut arrived, v));
                continue;
            };
            let there = (0..call.outputs.len()).map(|out| outs.contains(&(out as u32))).collect();
            let rule = chain_rule(ops, call, there, wanted.clone())?;
            for i in (0..wanted.len()).filter(|i| wanted[*i]) {
                match rule.derivatives.iter().any(|(input, _)| *input == i) {
                    true => arrive(&mut arrived, &call.inputs[i]),
                    false => cut = Some((call, i)),
                }
            }
        }
        let own = arrived.get(&Arc::as_ptr(self.input.node()));
        if own.is_some_and(|outs| outs.contains(&self.input.out())) {
            return Ok(None);
        }
        let targets = listed(self.outputs);
        if !self.outputs.iter().any(Value::requires_grad) {
            return Ok(Some(format!("{targets} was computed from constants only")));
        }
        Ok(Some(match cut {
            Some((call, i)) => {
                let (place, slot) = (call.prepared.describe(call.site), slot(call, i));
                format!("its path to {targets} ends at {place}, which passes no gradient on to `{slot}`")
            }
            None if self.ends.is_empty() => format!("no path leads from it to {targets}"),
            None => {
                let ends: Vec<Value> = self.ends.iter().map(|v| (*v).clone()).collect();
                format!("no path leads from it to {targets}, whose history ends at {}", listed(&ends))
            }
        }))
    }
}

fn slot(call: &OpCall, input: usize) -> String {
    let is_it = |var: &Var| call.prepared.arg(*var) == (Role::Input, input);
    let mut slots = call.prepared.desc.inputs.iter();
    slots.find(|(_, args)| args.iter().any(is_it)).map(|(slot, _)| slot.to_string()).unwrap_or_default()
}

fn listed(values: &[Value]) -> String {
    let mut text = String::new();
    for (i, value) in values.iter().take(LISTED).enumerate() {
        let _ = write!(text, "{}{value}", if i > 0 { ", " } else { "" });
    }
    match values.len() {
        n if n > LISTED => text + &format!(" and {} more", n - LISTED),
        _ => text,
    }
}
