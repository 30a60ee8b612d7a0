//! Feeds of variables that the program computes: the program is cut there.
//!
//! The operators that compute a fed variable are then not planned.

use std::{borrow::Cow, sync::Arc};

use autobwd_core::{Dim, Error, ErrorKind, Meta, OpDesc, Program, Result, Var};

/// The program without the writes that feeds replace: if the first operator that mentions a fed variable computes it,
/// that operator's output is redirected to an unread variable.
///
/// # Errors
/// A fed variable that several operators compute, or that is computed in a sub-block: it would not keep the fed value.
pub fn cut<'a>(program: &'a Program, feeds: &[(&str, Meta)]) -> Result<Cow<'a, Program>> {
    let mut cut = Cow::Borrowed(program);
    for (name, _) in feeds {
        let fed = program.find(name).and_then(|var| Some((var, program.root().vars.get(&var)?)));
        let Some((var, desc)) = fed.filter(|(_, desc)| !desc.persistable) else { continue };
        let Some(writer) = writer(program, var)
            .map_err(|why| Error::new(ErrorKind::Feed, format!("`{name}` cannot be fed: {why}")))?
        else {
            continue;
        };
        let cut = cut.to_mut();
        let unread = cut.fresh(&format!("{name}@UNREAD"));
        cut.root_mut().vars.insert(unread, desc.clone());
        let outputs = cut.root_mut().ops[writer].outputs.args_mut();
        outputs.filter(|output| **output == var).for_each(|output| *output = unread);
    }
    Ok(cut)
}

/// Checks that each name of a dimension stands for one number.
///
/// # Errors
/// Two feeds, or two dimensions of one, give a name different numbers.
pub(crate) fn check_names(program: &Program, feeds: &[(&str, Meta)]) -> Result<()> {
    let mut sizes: Vec<(Arc<str>, Dim, &str, usize)> = vec![];
    for (feed, meta) in feeds {
        let desc = program.find(feed).and_then(|var| program.root().vars.get(&var));
        let declared = desc.into_iter().flat_map(|desc| desc.dims.iter().zip(meta.dims.iter()).enumerate());
        for (axis, (dim, size)) in declared {
            let Some(name) = dim.name() else { continue };
            match sizes.iter().find(|(other, ..)| *other == name) {
                Some((_, known, ..)) if known == size => {}
                Some((_, known, first, at)) => {
                    let text = format!(
                        "`{feed}` cannot be fed: its dimension {axis} is `{name}`, which is {size} here, but {known} in dimension {at} of `{first}`"
                    );
                    return Err(Error::new(ErrorKind::Feed, text));
                }
                None => sizes.push((name, *size, feed, axis)),
            }
        }
    }
    Ok(())
}

/// Position of the operator that computes a variable, unless the first operator that mentions it reads the fed value.
fn writer(program: &Program, var: Var) -> Result<Option<usize>, String> {
    let ops = &program.root().ops;
    let mentions = |op: &OpDesc| op.reads().chain(op.writes()).any(|v| v == var);
    let Some(first) = ops.iter().position(mentions) else { return Ok(None) };
    if ops[first].reads().any(|v| v == var) {
        return Ok(None);
    }
    if ops[first].attrs.blocks().next().is_some() {
        return Err(format!(
            "`{}` computes it in a sub-block; feed an input of that operator",
            ops[first].ty
        ));
    }
    let again = ops[first + 1..].iter().find(|op| op.writes().any(|v| v == var));
    match again {
        Some(again) => {
            let (first, again) = (&ops[first].ty, &again.ty);
            Err(format!("`{first}` computes it and `{again}` overwrites it; feed another variable"))
        }
        None => Ok(Some(first)),
    }
}
