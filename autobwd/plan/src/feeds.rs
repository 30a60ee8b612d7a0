//! Feeds of variables that the program computes: the program is cut there.
//!
//! The operators that compute a fed variable are then not planned.

use std::borrow::Cow;

use autobwd_core::{Error, ErrorKind, Meta, OpDesc, Program, Result, Var};

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
