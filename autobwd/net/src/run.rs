//! Execution of trees as programs, whose plans the executor caches.

use std::collections::VecDeque;

use rustc_hash::FxHashSet;

use super::Operator;
use autobwd_core::{Meta, OpDesc, Program, Result};
use autobwd_exec::{Executor, Feed, Scope};

/// Maximum number of cached trees.
const MOST: usize = 16;

/// Trees that an executor ran, the most recent first.
#[derive(Default)]
struct TreeCache(VecDeque<PreparedTree>);

/// A tree with its program, for the dtypes and shapes of its inputs.
struct PreparedTree {
    tree: Operator,
    inputs: Vec<(String, Meta)>,
    outputs: Vec<String>,
    program: Program,
    /// The program's own scope, without values.
    scope: Scope,
}

impl Operator {
    /// Runs the tree as a program. Inputs are taken from the scope, and all results are written to it, intermediate
    /// values and those of steps included, because the gradient may read them.
    ///
    /// The executor caches the plans of the most recent trees, for their dtypes and shapes.
    ///
    /// # Errors
    /// Those of [`lower`](Operator::lower) and of running a program.
    pub fn run(&self, executor: &mut Executor, scope: &mut Scope) -> Result<()> {
        let mut prepared: TreeCache = executor.take_attached();
        let outcome = prepared.tree(self, executor, scope).and_then(|tree| tree.run(executor, scope));
        executor.attach(prepared);
        outcome
    }
}

impl TreeCache {
    fn tree(&mut self, tree: &Operator, executor: &Executor, scope: &Scope) -> Result<&mut PreparedTree> {
        let known = self.0.iter().position(|prepared| prepared.fits(tree, scope));
        let entry = match known.and_then(|i| self.0.remove(i)) {
            Some(entry) => entry,
            None => PreparedTree::new(tree, executor, scope)?,
        };
        self.0.truncate(MOST - 1);
        self.0.push_front(entry);
        Ok(&mut self.0[0])
    }
}

impl PreparedTree {
    fn new(tree: &Operator, executor: &Executor, values: &Scope) -> Result<PreparedTree> {
        let (program, inputs) = tree.lowered(executor.operators()?, &|name| values.meta(name))?;
        let mut seen = FxHashSet::default();
        let written = program.root().ops.iter().flat_map(OpDesc::writes).filter(|var| seen.insert(*var));
        let outputs: Vec<String> = written.map(|var| program.name(var).to_string()).collect();
        let inputs = inputs.into_iter().map(|var| program.name(var).to_string());
        let inputs = inputs.filter_map(|name| values.meta(&name).map(|meta| (name, meta))).collect();
        Ok(PreparedTree { tree: tree.clone(), inputs, outputs, program, scope: Scope::new() })
    }

    /// Whether it is that tree, for the current dtypes and shapes.
    fn fits(&self, tree: &Operator, scope: &Scope) -> bool {
        self.inputs.iter().all(|(name, meta)| scope.meta(name).as_ref() == Some(meta)) && self.tree == *tree
    }

    fn run(&mut self, executor: &mut Executor, values: &mut Scope) -> Result<()> {
        let inputs = self.inputs.iter().map(|(name, _)| Ok((&**name, values.get(name)? as &dyn Feed)));
        let feeds = inputs.collect::<Result<Vec<_>>>()?;
        let fetches: Vec<&str> = self.outputs.iter().map(String::as_str).collect();
        let fetched = executor.run(&self.program, &mut self.scope, &feeds, &fetches)?;
        self.outputs.iter().zip(fetched).for_each(|(name, value)| values.set(name, value));
        Ok(())
    }
}
