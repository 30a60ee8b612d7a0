//! Inputs and outputs of programs: the variables that are fed, their shapes, and the results.

use std::{collections::HashSet, path::Path, str::FromStr};

use autobwd::{BlockId, Meta, OpDesc, Program, Result, Tensor, Var, VarDesc, program::VarKind};
use autobwd_data::load_npz;

use crate::terminal::{CommandFailure, CommandResult};

/// The arrays of an npz file.
pub(crate) fn read_npz(path: &Path) -> CommandResult<Vec<(String, Tensor)>> {
    load_npz(path).map_err(|e| CommandFailure::Unreadable(e.to_string()))
}

/// The shape of a variable, `x=32,784`.
#[derive(Clone, Debug)]
pub(crate) struct NamedShape {
    name: String,
    dims: Vec<usize>,
}

impl FromStr for NamedShape {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<NamedShape, String> {
        let expected = || "a name and dimensions, such as `x=32,784`, are expected".to_string();
        let (name, dims) = text.rsplit_once('=').ok_or_else(expected)?;
        let dims = dims.split(',').filter(|dim| !dim.is_empty()).map(str::parse).collect::<Result<_, _>>();
        Ok(NamedShape { name: name.into(), dims: dims.map_err(|_| expected())? })
    }
}

impl NamedShape {
    /// The name with the dimensions.
    pub(crate) fn to_entry(&self) -> (String, Vec<usize>) {
        (self.name.clone(), self.dims.clone())
    }
}

/// The variables to be fed: those that the program reads and neither computes nor keeps.
fn data(program: &Program) -> impl Iterator<Item = (Var, &VarDesc)> {
    let vars = program.captures(BlockId::ROOT).into_iter();
    vars.filter_map(|var| Some((var, program.root().vars.get(&var)?))).filter(|(_, desc)| !desc.persistable)
}

/// The names of the variables to be fed.
pub(crate) fn inputs(program: &Program) -> Vec<&str> {
    data(program).map(|(var, _)| program.name(var)).collect()
}

/// Dtypes and shapes of these variables, with the given dimensions.
pub(crate) fn shaped(program: &Program, shapes: &[NamedShape]) -> CommandResult<Vec<(Var, Meta)>> {
    let mut metas = vec![];
    for NamedShape { name, dims } in shapes {
        let var = program.expect_var(name)?;
        let declared = program.root().vars.get(&var).map(VarDesc::meta);
        let given = Meta::new(declared.as_ref().map_or(autobwd::DType::F32, |meta| meta.dtype), &dims[..]);
        if let Some(declared) = declared.filter(|declared| !declared.agrees(&given)) {
            return Err(CommandFailure::Failed(format!(
                "`{name}` is {declared}, not of shape {}",
                given.dims
            )));
        }
        metas.push((var, given));
    }
    Ok(metas)
}

/// Dtypes and shapes of all variables to be fed: as given, else as declared.
pub(crate) fn feeds<'a>(program: &'a Program, shapes: &[NamedShape]) -> CommandResult<Vec<(&'a str, Meta)>> {
    let mut feeds: Vec<(&str, Meta)> =
        shaped(program, shapes)?.into_iter().map(|(var, meta)| (program.name(var), meta)).collect();
    for (var, desc) in data(program) {
        let name = program.name(var);
        if feeds.iter().any(|(given, _)| *given == name) {
            continue;
        }
        if desc.dims.known().is_none() {
            let dims = desc.dims.iter().map(|dim| dim.get().map_or("N".into(), |n| n.to_string()));
            let (shape, dims) = (&desc.dims, dims.collect::<Vec<_>>().join(","));
            let text = format!("`{name}` has shape {shape}: say which with `--shape {name}={dims}`");
            return Err(CommandFailure::Failed(text));
        }
        feeds.push((name, desc.meta()));
    }
    Ok(feeds)
}

/// The variables to fetch: the named ones, or all results, which the program computes and does not read. A variable
/// without elements, such as the shape that a reshape remembers for its gradient, is no result.
pub(crate) fn fetches<'a>(program: &'a Program, names: &'a [String]) -> Vec<&'a str> {
    if !names.is_empty() {
        return names.iter().map(String::as_str).collect();
    }
    let ops = program.blocks().iter().flat_map(|block| &block.ops);
    let read: HashSet<Var> = ops.flat_map(OpDesc::reads).collect();
    let written: HashSet<Var> = program.root().ops.iter().flat_map(OpDesc::writes).collect();
    let is_result = |var: &Var, desc: &VarDesc| {
        let whole = matches!(desc.kind, VarKind::Tensor | VarKind::SelectedRows);
        let is_empty = desc.dims.iter().any(|dim| *dim == 0);
        whole && !is_empty && !desc.persistable && written.contains(var) && !read.contains(var)
    };
    let vars = program.root().vars.iter().filter(|(var, desc)| is_result(var, desc));
    vars.map(|(var, _)| program.name(*var)).collect()
}
