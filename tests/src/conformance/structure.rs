//! Compares programs: operators in order, slots, names, attributes, block parents, new variables, results.

use std::collections::{BTreeMap, BTreeSet};

use autobwd::{
    Attr, BlockId, OpDesc, OpInfoMap, Program,
    op::{AttrType, OpInfo},
    program::{AttrMap, Slots},
};

use super::{Difference, attributes::relevant};

/// The compared part of a program: the blocks that operators refer to, in order.
pub(super) struct ProgramOutline {
    pub(super) blocks: Vec<BlockOutline>,
}

/// The compared part of a block.
pub(super) struct BlockOutline {
    /// Index of the parent.
    pub(super) parent: Option<usize>,
    /// Index of the block whose gradient it is. Not compared.
    pub(super) forward: Option<usize>,
    /// Its number in the program. Not compared.
    pub(super) number: usize,
    /// Number of operators of the model itself. Not compared.
    pub(super) own_ops: usize,
    pub(super) ops: Vec<OpOutline>,
    /// Variables that the model does not declare, with kind, dtype and shape.
    pub(super) new_vars: BTreeMap<String, String>,
}

/// The compared part of an operator.
#[derive(Clone, PartialEq)]
pub(super) struct OpOutline {
    pub(super) ty: String,
    /// Without empty slots.
    pub(super) inputs: BTreeMap<String, Vec<String>>,
    /// Without empty slots.
    pub(super) outputs: BTreeMap<String, Vec<String>>,
    /// Type and value as text, equal if and only if the values are bitwise equal.
    pub(super) attrs: BTreeMap<String, String>,
    /// Indices of its sub-blocks.
    pub(super) blocks: Vec<usize>,
}

impl ProgramOutline {
    /// The outline of `program`, which was built from `model`.
    ///
    /// # Errors
    /// An attribute that autobwd neither declares nor ignores.
    pub(super) fn of(
        ops: &OpInfoMap,
        program: &Program,
        model: &Program,
    ) -> Result<ProgramOutline, Difference> {
        let numbers = referenced(program);
        let position = |id: BlockId| numbers.iter().position(|n| *n == id.index());
        let mut blocks = vec![];
        for number in &numbers {
            let block = &program.blocks()[*number];
            let own = model.blocks().get(*number);
            let declared = |name: &str| {
                own.is_some_and(|own| model.find(name).is_some_and(|v| own.vars.contains_key(&v)))
            };
            let vars = block.vars.iter().map(|(v, desc)| (program.name(*v), desc));
            let new_vars = vars
                .filter(|(name, _)| !declared(name))
                .map(|(name, d)| (name.to_string(), format!("{:?} of {} {}", d.kind, d.dtype, d.dims)));
            let outlines = block.ops.iter().map(|op| OpOutline::of(ops, program, op, &position));
            blocks.push(BlockOutline {
                parent: block.parent.and_then(position),
                forward: block.forward.and_then(position),
                number: *number,
                own_ops: own.map_or(0, |own| own.ops.len()),
                new_vars: new_vars.collect(),
                ops: outlines.collect::<Result<_, _>>()?,
            });
        }
        Ok(ProgramOutline { blocks })
    }
}

/// Numbers of the blocks that operators refer to, the root's first.
fn referenced(program: &Program) -> Vec<usize> {
    let mut found = BTreeSet::from([0]);
    let mut next = vec![0];
    while let Some(block) = next.pop().and_then(|number: usize| program.blocks().get(number)) {
        let blocks = block.ops.iter().flat_map(|op| op.attrs.blocks()).map(BlockId::index);
        next.extend(blocks.filter(|number| *number < program.blocks().len() && found.insert(*number)));
    }
    found.into_iter().collect()
}

impl OpOutline {
    fn of(
        ops: &OpInfoMap,
        program: &Program,
        op: &OpDesc,
        position: &dyn Fn(BlockId) -> Option<usize>,
    ) -> Result<OpOutline, Difference> {
        let slots = |slots: &Slots| {
            let filled = slots.iter().filter(|(_, args)| !args.is_empty());
            let names = |args: &[autobwd::Var]| args.iter().map(|v| program.name(*v).to_string()).collect();
            filled.map(|(slot, args)| (slot.to_string(), names(args))).collect()
        };
        let info = ops.get(&op.ty).ok();
        let attrs = relevant(&op.ty, info, &op.attrs)?;
        Ok(OpOutline {
            ty: op.ty.to_string(),
            inputs: slots(&op.inputs),
            outputs: slots(&op.outputs),
            blocks: op.attrs.blocks().filter_map(position).collect(),
            attrs: attr_texts(info, &attrs, position),
        })
    }

    /// All names it reads or writes.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.inputs.values().chain(self.outputs.values()).flatten().map(String::as_str)
    }

    /// One line: `Out: y = scale(X: x; scale = f32 2.0)`.
    fn text(&self) -> String {
        let slots = |slots: &BTreeMap<String, Vec<String>>| {
            slots
                .iter()
                .map(|(slot, args)| format!("{slot}: {}", args.join(" ")))
                .collect::<Vec<_>>()
                .join(", ")
        };
        let mut text = format!("{} = {}({}", slots(&self.outputs), self.ty, slots(&self.inputs));
        let mut separator = "; ";
        for (name, value) in &self.attrs {
            text += &format!("{separator}{name} = {value}");
            separator = ", ";
        }
        text + ")"
    }
}

/// Attributes as text; an absent one has its default.
fn attr_texts(
    info: Option<&OpInfo>,
    attrs: &AttrMap,
    position: &dyn Fn(BlockId) -> Option<usize>,
) -> BTreeMap<String, String> {
    let block = |id: &BlockId| position(*id).map_or("nowhere".into(), |p| p.to_string());
    let text = |value: &Attr| match value {
        Attr::Block(id) => format!("block {}", block(id)),
        Attr::Blocks(ids) => format!("blocks {}", ids.iter().map(block).collect::<Vec<_>>().join(" ")),
        value => format!("{} {value}", AttrType::of(value)),
    };
    let declared = info.map_or(&[][..], |info| info.schema().attrs);
    let defaults = declared.iter().filter_map(|attr| Some((attr.name.to_string(), text(&attr.default?()))));
    defaults.chain(attrs.iter().map(|(name, value)| (name.to_string(), text(value)))).collect()
}

/// Compares two programs.
///
/// # Errors
/// The first difference, with both operators.
pub(super) fn compare(golden: &ProgramOutline, found: &ProgramOutline) -> Result<(), Difference> {
    for (b, (expected, found)) in golden.blocks.iter().zip(&found.blocks).enumerate() {
        compare_ops(b, &expected.ops, &found.ops)?;
        if expected.parent != found.parent {
            let text =
                format!("block {b}: its parent is block {:?}, not {:?}", found.parent, expected.parent);
            return Err(Difference::new(text));
        }
        compare_vars(b, &expected.new_vars, &found.new_vars)?;
    }
    let (expected, found) = (golden.blocks.len(), found.blocks.len());
    if expected == found {
        return Ok(());
    }
    Err(Difference::new(format!("{found} blocks that operators refer to, not {expected}")))
}

fn compare_ops(block: usize, golden: &[OpOutline], found: &[OpOutline]) -> Result<(), Difference> {
    for i in 0..golden.len().max(found.len()) {
        let (golden, found) = (golden.get(i), found.get(i));
        if golden != found {
            let text = |op: Option<&OpOutline>| op.map_or("(no operator)".into(), OpOutline::text);
            return Err(Difference::new(format!(
                "block {block}, operator {i}\n  golden:  {}\n  autobwd: {}",
                text(golden),
                text(found)
            )));
        }
    }
    Ok(())
}

fn compare_vars(
    block: usize,
    golden: &BTreeMap<String, String>,
    found: &BTreeMap<String, String>,
) -> Result<(), Difference> {
    let names: BTreeSet<&String> = golden.keys().chain(found.keys()).collect();
    for name in names {
        let (golden, found) = (golden.get(name), found.get(name));
        if golden != found {
            let text = |var: Option<&String>| var.map_or("(not declared)".into(), String::clone);
            return Err(Difference::new(format!(
                "block {block}, new variable `{name}`\n  golden:  {}\n  autobwd: {}",
                text(golden),
                text(found)
            )));
        }
    }
    Ok(())
}

/// Compares the results of a call.
///
/// # Errors
/// Other variables, gradients or another order.
pub(super) fn compare_answers(
    golden: &[(String, Option<String>)],
    found: &[(String, Option<String>)],
) -> Result<(), Difference> {
    if golden == found {
        return Ok(());
    }
    let text = |answer: &[(String, Option<String>)]| {
        let pair =
            |(var, grad): &(String, Option<String>)| format!("{var}: {}", grad.as_deref().unwrap_or("none"));
        answer.iter().map(pair).collect::<Vec<_>>().join(", ")
    };
    Err(Difference::new(format!("result\n  golden:  {}\n  autobwd: {}", text(golden), text(found))))
}
