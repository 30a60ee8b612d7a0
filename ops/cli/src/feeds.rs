//! Inputs and outputs of programs: the variables that are fed, their shapes, and the results.

use std::collections::HashSet;

use autobwd::{
    BlockId, DType, Error, ErrorKind, Meta, OpDesc, Program, Result, Var, VarDesc,
    program::{SignatureEntry, VarKind},
};
use autobwd_ops::Model;

/// The variables to be fed: those that the program reads and neither computes nor keeps.
fn data(program: &Program) -> impl Iterator<Item = (Var, &VarDesc)> {
    let vars = program.captures(BlockId::ROOT).into_iter();
    vars.filter_map(|var| Some((var, program.root().vars.get(&var)?))).filter(|(_, desc)| !desc.persistable)
}

/// Names the inputs and the results of a model that names none: by the signature of the program, or all that it has.
pub(crate) fn complete(model: &mut Model) {
    if !model.fetches.is_empty() {
        return;
    }
    let signature = model.program.signature();
    let variables = |entries: &[SignatureEntry]| entries.iter().map(|e| e.variable.clone()).collect();
    let named = |names: Vec<&str>| names.into_iter().map(str::to_string).collect();
    (model.feeds, model.fetches) = match &signature.outputs[..] {
        [] => (named(inputs(&model.program)), named(fetches(&model.program, &[]))),
        outputs => (variables(&signature.inputs), variables(outputs)),
    };
}

/// The names of the variables to be fed.
pub(crate) fn inputs(program: &Program) -> Vec<&str> {
    data(program).map(|(var, _)| program.name(var)).collect()
}

/// Dtypes and shapes of these variables, with the given dimensions.
pub(crate) fn shaped(program: &Program, shapes: &[(String, Vec<usize>)]) -> Result<Vec<(Var, Meta)>> {
    let mut metas = vec![];
    for (name, dims) in shapes {
        let var = program.expect_var(name)?;
        let declared = program.root().vars.get(&var).map(VarDesc::meta);
        let given = Meta::new(declared.as_ref().map_or(DType::F32, |meta| meta.dtype), &dims[..]);
        if let Some(declared) = declared.filter(|declared| !declared.agrees(&given)) {
            let text = format!("`{name}` is {declared}, not of shape {}", given.dims);
            return Err(Error::new(ErrorKind::Shape, text));
        }
        metas.push((var, given));
    }
    Ok(metas)
}

/// Dtypes and shapes of all variables to be fed: as given by name, else as declared.
///
/// ```
/// use autobwd::{Builder, DType};
/// use autobwd_ops::Math;
/// let net = Builder::new();
/// let _ = net.input("x", DType::F32, &[-1, 2]).tanh();
/// let program = net.program()?;
/// let feeds = autobwd_cli::feed_metas(&program, &[("x".into(), vec![8, 2])])?;
/// assert_eq!(feeds[0].1.to_string(), "float32 [8, 2]");
/// assert!(autobwd_cli::feed_metas(&program, &[]).is_err());
/// # Ok::<(), autobwd::Error>(())
/// ```
///
/// # Errors
/// An unknown variable; a shape other than the declared one; a declared shape that is not known, and not given.
pub fn feed_metas<'a>(program: &'a Program, shapes: &[(String, Vec<usize>)]) -> Result<Vec<(&'a str, Meta)>> {
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
            let text = format!("`{name}` has shape {shape}: give its shape, such as `{name}={dims}`");
            return Err(Error::new(ErrorKind::Shape, text));
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
