//! `op_role` and `op_role_var`: the part of a training program to which an operator belongs.

use std::collections::HashSet;

use autobwd::{
    Attr, OpDesc, Program,
    program::{Origin, Var},
};

use crate::{attrs::write_attr, proto::op_desc};

pub(super) const FORWARD: i32 = 0;
const BACKWARD: i32 = 1;
const OPTIMIZE: i32 = 2;
const LOSS: i32 = 0x100;

/// The roles of a program's operators.
pub(super) struct Roles<'a> {
    program: &'a Program,
    /// The variables at which the backward pass starts.
    losses: HashSet<Var>,
    /// The roles in the root block, in which forward pass, backward pass and updates follow each other.
    root: Vec<i32>,
}

impl<'a> Roles<'a> {
    pub(super) fn of(program: &'a Program) -> Roles<'a> {
        let ops = &program.root().ops;
        let seeds = ops.iter().filter(|op| op.origin == Origin::Seed);
        let of = |var: Var| program.find(program.name(var).strip_suffix("@GRAD")?);
        let losses = seeds.flat_map(OpDesc::writes).filter_map(of).collect();
        let mut roles = Roles { program, losses, root: vec![] };
        let mut root: Vec<i32> = ops.iter().map(|op| roles.own(op)).collect();
        let precedes_loss = feeding(ops, |i| root[i] == FORWARD | LOSS);
        let precedes_backward = feeding(ops, |i| root[i] == BACKWARD);
        // What is computed from gradients belongs to the backward pass or, after it, to the updates: clipping, unscaling.
        let mut derived: HashSet<Var> = HashSet::new();
        let is_parameter = |var: &Var| program.root().vars.get(var).is_some_and(|desc| desc.parameter);
        for (i, op) in ops.iter().enumerate() {
            if root[i] == FORWARD && !precedes_loss[i] && op.reads().any(|var| derived.contains(&var)) {
                root[i] = if precedes_backward[i] { BACKWARD } else { OPTIMIZE };
            }
            if root[i] & (BACKWARD | OPTIMIZE) != 0 {
                // A later forward pass reads updated parameters.
                derived.extend(op.writes().filter(|var| !is_parameter(var)));
            }
        }
        // Numbers that only updates read: counters of steps, schedules.
        let precedes_update = feeding(ops, |i| root[i] == OPTIMIZE);
        for (i, role) in root.iter_mut().enumerate() {
            if *role == FORWARD && precedes_update[i] && !precedes_loss[i] && !precedes_backward[i] {
                *role = OPTIMIZE;
            }
        }
        roles.root = root;
        roles
    }

    /// The role of an operator by itself.
    fn own(&self, op: &OpDesc) -> i32 {
        match op.origin {
            _ if is_update(op) => OPTIMIZE,
            Origin::Model if op.ty.ends_with("_grad") => BACKWARD,
            Origin::Model if op.writes().any(|var| self.losses.contains(&var)) => FORWARD | LOSS,
            Origin::Model => FORWARD,
            Origin::Seed => BACKWARD | LOSS,
            _ => BACKWARD,
        }
    }

    /// The attributes of an operator, with its index if it stands in the root block.
    pub(super) fn attrs(&self, index: Option<usize>, op: &OpDesc) -> Vec<op_desc::Attr> {
        let role = index.and_then(|i| self.root.get(i).copied()).unwrap_or_else(|| self.own(op));
        let vars = match (role, op.inputs.get("Param"), op.inputs.get("Grad")) {
            (OPTIMIZE, [param, ..], [grad, ..]) if is_update(op) => vec![*param, *grad],
            (BACKWARD, ..) => self.gradients(op),
            _ => vec![],
        };
        attrs(role, vars.into_iter().map(|var| self.program.name(var).to_string()).collect())
    }

    /// Parameters whose gradients the operator writes, each followed by its gradient.
    fn gradients(&self, op: &OpDesc) -> Vec<Var> {
        let root = &self.program.root().vars;
        let of = |var: Var| {
            let parameter = root.get(&var)?.gradient_of?;
            let is_parameter = root.get(&parameter).is_some_and(|desc| desc.parameter);
            (is_parameter && self.program.gradient_name(parameter) == Some(var)).then_some([parameter, var])
        };
        op.writes().filter_map(of).flatten().collect()
    }
}

/// The attributes of a role, with the names of parameters and their gradients.
pub(super) fn attrs(role: i32, vars: Vec<String>) -> Vec<op_desc::Attr> {
    let attrs = [("op_role", Attr::I32(role)), ("op_role_var", Attr::Strs(vars))];
    attrs.into_iter().filter_map(|(name, value)| write_attr(name, value, None)).collect()
}

fn is_update(op: &OpDesc) -> bool {
    let has = |slot: &str| !op.inputs.get(slot).is_empty();
    has("Param") && has("Grad") && op.outputs.find("ParamOut").is_some()
}

/// Which operators write what a target reads, or what such an operator reads.
fn feeding(ops: &[OpDesc], is_target: impl Fn(usize) -> bool) -> Vec<bool> {
    let mut wanted: HashSet<Var> = HashSet::new();
    let mut feeding = vec![false; ops.len()];
    for (i, op) in ops.iter().enumerate().rev() {
        feeding[i] = op.writes().filter(|var| wanted.remove(var)).count() > 0;
        if feeding[i] || is_target(i) {
            wanted.extend(op.reads());
        }
    }
    feeding
}
