//! The operators of one scope as a flat program.

use super::Operator;
use autobwd_core::Program;

/// The operators of one scope in execution order: the operators of its tree, without nets. A recurrent operator stands for its
/// steps, which have scopes of their own.
pub(super) struct FlatScope<'a> {
    pub(super) nodes: Vec<&'a Operator>,
    /// By node, its operator; variables are not declared.
    pub(super) program: Program,
}

impl<'a> FlatScope<'a> {
    pub(super) fn new(tree: &'a [Operator]) -> FlatScope<'a> {
        let (mut nodes, mut program, mut ops) = (vec![], Program::new(), vec![]);
        tree.iter().for_each(|op| op.each(&mut |op| nodes.push(op)));
        nodes.iter().for_each(|op| ops.push(op.desc(&mut |name| program.var(name))));
        program.root_mut().ops = ops;
        FlatScope { nodes, program }
    }
}
