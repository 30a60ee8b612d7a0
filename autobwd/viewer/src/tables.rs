//! Variables, blocks and operators as tables of numbers.

use rustc_hash::{FxHashMap, FxHashSet};
use serde::Serialize;

use autobwd_core::{Block, BlockId, OpDesc, Origin, Program, Slots, Var};

use crate::{
    compare::{Insertion, compare},
    layout::{At, OpPlacement, PageRow, StepPart, places},
    texts::{Texts, shortened, type_text},
};

/// A slot name with its variables; −1 is `@EMPTY@`.
type SlotArgs = (usize, Vec<i64>);

/// How an operator differs from the older program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Status {
    Same,
    Added,
    Removed,
    Changed,
    Moved,
}

/// An operator. Texts and variables are numbers, −1 where there is none.
#[derive(Debug, Serialize)]
pub(crate) struct OpData {
    #[serde(rename = "t")]
    ty: usize,
    /// Block and index.
    #[serde(rename = "p")]
    place: At,
    #[serde(rename = "i")]
    inputs: Vec<SlotArgs>,
    #[serde(rename = "o")]
    outputs: Vec<SlotArgs>,
    #[serde(rename = "a", skip_serializing_if = "Vec::is_empty")]
    attrs: Vec<(usize, usize)>,
    #[serde(rename = "b", skip_serializing_if = "Vec::is_empty")]
    pub(crate) blocks: Vec<usize>,
    #[serde(rename = "s")]
    pub(crate) site: i64,
    /// The path of its module.
    #[serde(skip)]
    pub(crate) module: Option<String>,
    /// Kind, and the index of the forward operator.
    #[serde(rename = "g", skip_serializing_if = "is_model")]
    origin: (u8, i64),
    #[serde(rename = "r", skip_serializing_if = "is_zero")]
    part: u8,
    #[serde(rename = "d", skip_serializing_if = "is_zero")]
    status: u8,
    /// The old text of a changed operator, the old index of a moved one.
    #[serde(rename = "w", skip_serializing_if = "Option::is_none")]
    was: Option<usize>,
}

fn is_model(origin: &(u8, i64)) -> bool {
    origin.0 == 0
}

fn is_zero(number: &u8) -> bool {
    *number == 0
}

impl OpData {
    pub(crate) fn is_update(&self) -> bool {
        self.part == StepPart::Update as u8
    }
}

/// A block with the declarations of its variables: name, type, flags (parameter 1, persistable 2, stop gradient 4), and
/// the variable that it is the gradient of.
#[derive(Debug, Serialize)]
pub(crate) struct BlockData {
    parent: i64,
    forward: i64,
    vars: Vec<(usize, usize, u8, i64)>,
}

/// The tables of a page.
#[derive(Debug, Default)]
pub(crate) struct Tables {
    pub(crate) names: Texts,
    pub(crate) texts: Texts,
    pub(crate) ops: Vec<OpData>,
    pub(crate) blocks: Vec<BlockData>,
}

impl Tables {
    /// Adds the blocks and operators of a program; returns the number of each block's first operator.
    pub(crate) fn program(&mut self, program: &Program, places: &[Vec<OpPlacement>]) -> Vec<usize> {
        let mut first = vec![];
        for (b, block) in program.blocks().iter().enumerate() {
            first.push(self.ops.len());
            let data = self.block(program, block);
            self.blocks.push(data);
            for (i, op) in block.ops.iter().enumerate() {
                let data = self.op(program, (b, i), op, places[b][i].part);
                self.ops.push(data);
            }
        }
        first
    }

    fn block(&mut self, program: &Program, block: &Block) -> BlockData {
        let number = |id: Option<BlockId>| id.map_or(-1, |id| id.index() as i64);
        let vars = block.vars.iter().map(|(var, desc)| {
            let flags = u8::from(desc.parameter)
                | u8::from(desc.persistable) << 1
                | u8::from(desc.stop_gradient) << 2;
            let of = desc.gradient_of.map_or(-1, |of| self.var(program, of) as i64);
            (self.var(program, *var), self.texts.id(&type_text(desc)), flags, of)
        });
        let vars = vars.collect();
        BlockData { parent: number(block.parent), forward: number(block.forward), vars }
    }

    fn op(&mut self, program: &Program, place: At, op: &OpDesc, part: StepPart) -> OpData {
        let origin = match op.origin {
            Origin::Model => (0, -1),
            Origin::Seed => (1, -1),
            Origin::Gradient { of } => (2, of as i64),
            Origin::Accumulate => (3, -1),
            Origin::ZeroFill => (4, -1),
            Origin::Kept => (5, -1),
            Origin::Recompute { of } => (6, of as i64),
            Origin::AllReduce => (7, -1),
        };
        let attrs = op.attrs.iter();
        let attrs = attrs.map(|(name, value)| {
            (self.texts.id(name.as_str()), self.texts.id(&shortened(&value.to_string())))
        });
        OpData {
            attrs: attrs.collect(),
            ty: self.texts.id(op.ty.as_str()),
            place,
            inputs: self.slots(program, &op.inputs),
            outputs: self.slots(program, &op.outputs),
            blocks: op.attrs.blocks().map(BlockId::index).collect(),
            site: op.site.map_or(-1, |site| self.texts.id(&site.to_string()) as i64),
            module: op.module().map(str::to_string),
            origin,
            part: part as u8,
            status: Status::Same as u8,
            was: None,
        }
    }

    fn slots(&mut self, program: &Program, slots: &Slots) -> Vec<SlotArgs> {
        let number = |tables: &mut Tables, v: &Var| match *v {
            Var::EMPTY => -1,
            var => tables.var(program, var) as i64,
        };
        let slot = |(name, args): (autobwd_core::Name, &[Var])| {
            let args = args.iter().map(|v| number(self, v)).collect();
            (self.texts.id(name.as_str()), args)
        };
        slots.iter().map(slot).collect()
    }

    pub(crate) fn var(&mut self, program: &Program, var: Var) -> usize {
        self.names.id(program.name(var))
    }

    /// Marks the differences from an older program, and adds the operators that are gone, each after the row of the
    /// one that stood before it.
    pub(crate) fn differences(
        &mut self,
        old: &Program,
        new: &Program,
        first: &[usize],
        rows: &mut Vec<Vec<PageRow>>,
    ) {
        let comparison = compare(old, new);
        for (b, i) in &comparison.added {
            self.ops[first[*b] + i].status = Status::Added as u8;
        }
        for ((b, i), was) in &comparison.changed {
            let was = self.texts.id(&shortened(was));
            let op = &mut self.ops[first[*b] + i];
            (op.status, op.was) = (Status::Changed as u8, Some(was));
        }
        for ((b, j), i) in &comparison.moved {
            let was = self.texts.id(&format!("operator {i}"));
            let op = &mut self.ops[first[*b] + j];
            (op.status, op.was) = (Status::Moved as u8, Some(was));
        }
        rows.resize(rows.len().max(old.blocks().len()), vec![]);
        let old_places = places(old);
        let (mut numbers, mut gone): (FxHashMap<At, usize>, Vec<At>) = Default::default();
        for (b, block) in old.blocks().iter().enumerate() {
            let data = self.block(old, block);
            match self.blocks.get_mut(b) {
                Some(known) => {
                    let names: FxHashSet<usize> = known.vars.iter().map(|var| var.0).collect();
                    let gone = data.vars.into_iter().filter(|var| !names.contains(&var.0));
                    known.vars.extend(gone);
                }
                None => self.blocks.push(data),
            }
            for (i, op) in block.ops.iter().enumerate() {
                let number = match comparison.matchings[b].to_new[i] {
                    Some(j) => first[b] + j,
                    None => {
                        let mut data = self.op(old, (b, i), op, old_places[b][i].part);
                        // Its blocks are the old program's.
                        (data.status, data.blocks) = (Status::Removed as u8, vec![]);
                        self.ops.push(data);
                        gone.push((b, i));
                        self.ops.len() - 1
                    }
                };
                numbers.insert((b, i), number);
            }
        }
        let mut insertion = Insertion::of(rows);
        for (b, i) in gone {
            let place = &old_places[b][i];
            let partner = place.row.filter(|_| place.right).and_then(|at| numbers.get(&at));
            let before = i.checked_sub(1).and_then(|before| numbers.get(&(b, before)));
            insertion.add(b, numbers[&(b, i)], place.right, partner, before);
        }
        insertion.complete();
    }

    /// The key for detecting repeats: operator type, and, except for updates, output types.
    pub(crate) fn signature(&self, program: &Program, number: usize) -> String {
        let op = &self.ops[number];
        let mut text = format!("{} {}", op.ty, op.status);
        if op.part == StepPart::Forward as u8 && op.status != Status::Removed as u8 {
            let (block, index) = op.place;
            let types = program.blocks()[block].ops[index].writes();
            let types = types.filter_map(|v| program.lookup(BlockId::new(block), v));
            types.for_each(|desc| text += &type_text(desc));
            op.inputs.iter().for_each(|(slot, args)| text += &format!(" {slot}:{}", args.len()));
        }
        text
    }

    pub(crate) fn type_name(&self, number: usize) -> &str {
        &self.texts.list[self.ops[number].ty]
    }
}
