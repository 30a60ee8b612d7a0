//! Names and nodes of the file for the variables and operators of the program.
//!
//! Variables keep their names from the file; each operator's site is the node it came from.

use std::collections::{HashMap, HashSet};

use autobwd::{
    Expr, OpDesc, Program,
    program::{Block, Name, Site, Var},
};

use super::{Importer, value::ImportedValue, value::ValueContent, variable_name};
use crate::proto::NodeProto;

/// The longest place that is kept, in bytes.
const PLACE: usize = 256;

/// What the nodes of the main graph have appended to the program.
#[derive(Default)]
pub(super) struct NodeNames {
    /// Names of values, by variable.
    values: HashMap<Var, Var>,
    /// The names in use.
    used: HashSet<Var>,
    /// Of each node: its place, and the numbers of operators in the main block and of blocks after it.
    ends: Vec<(Option<Site>, usize, usize)>,
}

/// Where PyTorch's exporter says which modules a node is in: their paths, from the outermost to the node itself, as a list
/// in Python.
const SCOPES: &str = "pkg.torch.onnx.name_scopes";

/// The place of a node in its module: `node `encoder/layers.0/MatMul``.
pub(super) fn place_in_module(node: &NodeProto) -> String {
    let name =
        if node.name().is_empty() { node.output.first().map_or("", String::as_str) } else { node.name() };
    let scopes = node.metadata_props.iter().find(|pair| pair.key() == SCOPES).map(|pair| pair.value());
    let Some(scopes) = scopes.filter(|_| !name.contains('/')) else { return format!("node `{name}`") };
    let (mut path, mut outer) = (String::new(), "");
    let mut paths: Vec<&str> = scopes.split('\'').skip(1).step_by(2).collect();
    // The last one is the node's.
    paths.pop();
    for scope in paths {
        let inner = scope.strip_prefix(outer).unwrap_or(scope).trim_start_matches('.');
        if !inner.is_empty() {
            path += &format!("{inner}/");
        }
        outer = scope;
    }
    format!("node `{path}{name}`")
}

impl Importer<'_> {
    /// Records what a node of the main graph has appended.
    pub(super) fn name_node(&mut self, place: &str, outputs: &[ImportedValue], names: &[String]) {
        if self.depth > 0 {
            return;
        }
        let Ok(program) = self.net.program() else { return };
        let printable = place.len() <= PLACE && !place.contains(char::is_control);
        let site = printable.then(|| Site::Loaded(Name::new(place)));
        self.names.ends.push((site, program.root().ops.len(), program.blocks().len()));
        for (value, name) in outputs.iter().zip(names).filter(|(_, name)| !name.is_empty()) {
            let ValueContent::Computed(expr) = &value.content else { continue };
            let (var, name) = (program.find(&expr.name()), program.find(&variable_name(name)));
            let (Some(var), Some(name)) = (var, name) else { continue };
            // Inputs, parameters and the results of earlier nodes have names of the file.
            let computed = program.root().vars.get(&var).is_some_and(|desc| !desc.persistable);
            let named = self.feeds.contains(&var) || self.names.values.contains_key(&var);
            if computed && !named && self.names.used.insert(name) {
                self.names.values.insert(var, name);
            }
        }
    }

    /// Whether a value gets this name.
    pub(super) fn is_named(&self, expr: &Expr, name: &str) -> bool {
        let Ok(program) = self.net.program() else { return false };
        let (var, name) = (program.find(&expr.name()), program.find(name));
        var.is_some_and(|var| self.names.values.get(&var).copied() == name)
    }
}

impl NodeNames {
    /// Gives variables the names of their values, and operators the places of their nodes; returns these variables.
    pub(super) fn apply(mut self, program: &mut Program) -> HashSet<Var> {
        let declared =
            |program: &Program, var: &Var| program.blocks().iter().any(|block| block.vars.get(var).is_some());
        self.values.retain(|_, name| !declared(program, name));
        let count = program.blocks().len();
        for index in 0..count {
            let Some(block) = program.block_mut(autobwd::BlockId::new(index)) else { continue };
            self.rename(block);
            for (i, op) in block.ops.iter_mut().enumerate() {
                // Blocks and operators are in the order of their nodes.
                let node = match index {
                    0 => self.ends.partition_point(|(_, ops, _)| *ops <= i),
                    _ => self.ends.partition_point(|(_, _, blocks)| *blocks <= index),
                };
                op.site = self.ends.get(node).and_then(|(site, ..)| *site);
            }
        }
        self.values.into_values().collect()
    }

    fn rename(&self, block: &mut Block) {
        let name = |var: Var| self.values.get(&var).copied().unwrap_or(var);
        let rename = |op: &mut OpDesc| {
            let slots = op.inputs.args_mut().chain(op.outputs.args_mut());
            slots.for_each(|var| *var = name(*var));
        };
        block.ops.iter_mut().for_each(rename);
        let vars = std::mem::take(&mut block.vars);
        block.vars.extend(vars.into_iter().map(|(var, desc)| (name(var), desc)));
    }
}
