//! Programs as the reference's messages.
//!
//! Operators that PaddlePaddle does not know are replaced by their compositions. The part of a training program
//! (`op_role`) follows from the operators' origins.

mod roles;

use std::collections::{BTreeSet, HashSet};

use autobwd::{
    BlockId, OpDesc, OpInfoMap, Program, Result, VarDesc,
    op::SlotDef,
    program::{Block, Slots, Var, VarKind},
};

use autobwd_core::__private::Obstacles;
use autobwd_ops::{model::lower, update::UpdateLossScaling};

use roles::Roles;

use crate::{
    attrs::write_attr,
    proto::{
        self, AttrType, op_desc,
        op_version_map::OpVersionPair,
        var_type::{LoDTensorArrayDesc, LoDTensorDesc, TensorDesc, Type},
    },
    reference::{ReferenceOp, gradient_defaults, is_hint, reference, reference_attr, slot_there},
    tensors::element_type,
};

/// The version that files claim: PaddlePaddle 2.6.2.
const VERSION: i64 = 2_006_002;

/// The message of a program, with its inputs and outputs.
///
/// # Errors
/// Everything that the reference cannot express, as one list: operators without a composition of its operators, slots,
/// attributes off their default, inputs and outputs that are not declared.
pub(crate) fn export(
    program: &Program,
    ops: &OpInfoMap,
    feeds: &[String],
    fetches: &[String],
) -> Result<proto::ProgramDesc> {
    let failed = "the program cannot be written for PaddlePaddle";
    let mut obstacles = Obstacles::default();
    for name in feeds.iter().chain(fetches) {
        obstacles.note("", program.expect_var(name));
    }
    let program = lower(program, ops, |_, _, op| Ok(reference(&op.ty)?.is_some() && !lacks_gradients(op)))?;
    for (b, block) in program.blocks().iter().enumerate() {
        for (i, op) in block.ops.iter().enumerate() {
            if reference(&op.ty)?.is_none() {
                let text = format!("operator `{}` is unknown to PaddlePaddle and has no composition", op.ty);
                obstacles.add(format!("block {b}, operator {i}"), text);
            }
        }
    }
    obstacles.require_none(failed)?;
    let roles = Roles::of(&program);
    let read = program.blocks().iter().flat_map(|block| &block.ops).flat_map(OpDesc::reads).collect();
    let mut export = Export { program: &program, ops, roles, read, obstacles, types: BTreeSet::new() };
    let blocks = (0..program.blocks().len()).map(|b| export.block(b)).collect::<Result<Vec<_>>>()?;
    let Export { obstacles, types, .. } = export;
    obstacles.require_none(failed)?;
    let mut file = proto::ProgramDesc {
        blocks,
        version: Some(proto::Version { version: Some(VERSION) }),
        op_version_map: Some(versions(&types)?),
    };
    if let Some(root) = file.blocks.first_mut() {
        add_feeds_and_fetches(root, feeds, fetches);
    }
    Ok(file)
}

/// Whether an operator changes the scale of a loss alone: that of the reference also needs gradients.
fn lacks_gradients(op: &OpDesc) -> bool {
    op.as_op::<UpdateLossScaling>().is_some_and(|op| op.x.is_empty())
}

/// The versions of the definitions of these operators.
fn versions(types: &BTreeSet<&'static str>) -> Result<proto::OpVersionMap> {
    let mut pair = vec![];
    for ty in types {
        if let Some(version) = reference(ty)?.and_then(|op| op.version) {
            let op_version = proto::OpVersion { version };
            pair.push(OpVersionPair { op_name: (*ty).into(), op_version });
        }
    }
    Ok(proto::OpVersionMap { pair })
}

/// Declares the holders of inputs and outputs and adds the operators that read and write them.
fn add_feeds_and_fetches(root: &mut proto::BlockDesc, feeds: &[String], fetches: &[String]) {
    let holder = |name: &str, kind: Type| {
        let mut var = proto::VarDesc { name: name.into(), persistable: Some(true), ..Default::default() };
        var.r#type.set_type(kind);
        var
    };
    root.vars.push(holder("feed", Type::FeedMinibatch));
    root.vars.push(holder("fetch", Type::FetchList));
    for var in root.vars.iter_mut().filter(|var| feeds.contains(&var.name)) {
        var.need_check_feed = Some(true);
    }
    let attrs = |column: usize| {
        let column = write_attr("col", autobwd::Attr::I32(column as i32), None);
        column.into_iter().chain(roles::attrs(roles::FORWARD, vec![])).collect()
    };
    let op = |ty: &str, (from, x): (&str, &str), column: usize| proto::OpDesc {
        r#type: ty.into(),
        inputs: vec![op_desc::Var { parameter: "X".into(), arguments: vec![from.into()] }],
        outputs: vec![op_desc::Var { parameter: "Out".into(), arguments: vec![x.into()] }],
        attrs: attrs(column),
        is_target: None,
    };
    let reads = feeds.iter().enumerate().map(|(i, name)| op("feed", ("feed", name), i));
    let writes = fetches.iter().enumerate().map(|(i, name)| op("fetch", (name, "fetch"), i));
    let between = std::mem::take(&mut root.ops);
    root.ops = reads.chain(between).chain(writes).collect();
}

struct Export<'a> {
    program: &'a Program,
    ops: &'a OpInfoMap,
    roles: Roles<'a>,
    /// Variables with a reader.
    read: HashSet<Var>,
    obstacles: Obstacles,
    /// Operator types that occur.
    types: BTreeSet<&'static str>,
}

impl Export<'_> {
    fn block(&mut self, index: usize) -> Result<proto::BlockDesc> {
        let none = Block::default();
        let block = self.program.block(BlockId::new(index)).unwrap_or(&none);
        let number = |block: Option<BlockId>| block.map_or(-1, |block| block.index() as i32);
        let vars = block.vars.iter().map(|(var, desc)| self.var(*var, desc)).collect();
        let ops = block.ops.iter().enumerate().map(|(i, op)| {
            let place = format!("block {index}, operator {i}");
            self.op(&place, op, (index == 0).then_some(i))
        });
        Ok(proto::BlockDesc {
            idx: index as i32,
            parent_idx: number(block.parent),
            forward_block_idx: Some(number(block.forward)),
            vars,
            ops: ops.collect::<Result<_>>()?,
        })
    }

    fn var(&self, var: Var, desc: &VarDesc) -> proto::VarDesc {
        let tensor = TensorDesc {
            data_type: element_type(desc.dtype) as i32,
            dims: desc.dims.iter().map(|dim| dim.wire()).collect(),
        };
        let mut ty = proto::VarType::default();
        match desc.kind {
            VarKind::Tensor => {
                ty.set_type(Type::LodTensor);
                ty.lod_tensor = Some(LoDTensorDesc { tensor, lod_level: Some(0) });
            }
            VarKind::SelectedRows => {
                ty.set_type(Type::SelectedRows);
                ty.selected_rows = Some(tensor);
            }
            VarKind::TensorArray => {
                ty.set_type(Type::LodTensorArray);
                ty.tensor_array = Some(LoDTensorArrayDesc { tensor, lod_level: Some(0) });
            }
            // A further kind needs a line above.
            _ => ty.set_type(Type::StepScopes),
        }
        proto::VarDesc {
            name: self.program.name(var).into(),
            r#type: ty,
            persistable: Some(desc.persistable),
            need_check_feed: Some(false),
            is_parameter: Some(desc.parameter),
            stop_gradient: Some(desc.stop_gradient),
            attrs: vec![],
        }
    }

    /// The message of an operator, with its index if it stands in the root block.
    fn op(&mut self, place: &str, op: &OpDesc, index: Option<usize>) -> Result<proto::OpDesc> {
        let info = self.ops.get(&op.ty)?;
        let schema = info.schema();
        self.types.insert(schema.name);
        let empty = ReferenceOp::default();
        let known = reference(schema.name)?.unwrap_or(&empty);
        let inputs = self.slots(place, op, (&op.inputs, &known.inputs), schema.inputs);
        let outputs = self.slots(place, op, (&op.outputs, &known.outputs), schema.outputs);
        let mut attrs = vec![];
        for def in schema.attrs {
            let default = def.default.map(|default| default());
            let Some(value) = op.attrs.get(def.name).cloned().or_else(|| default.clone()) else { continue };
            let declared = reference_attr(schema.name, def.name)?.map(|(ty, _)| ty);
            let is_block = matches!(value, autobwd::Attr::Block(_) | autobwd::Attr::Blocks(_));
            if declared.is_none() && !is_block {
                if default.as_ref() != Some(&value) && !is_hint(def.name) {
                    let text = format!(
                        "attribute `{}` = {value} of operator `{}` is unknown to PaddlePaddle",
                        def.name, op.ty
                    );
                    self.obstacles.add(place, text);
                }
                continue;
            }
            let declared = declared.filter(|ty| !matches!(ty, AttrType::Scalar));
            match write_attr(def.name, value.clone(), declared) {
                Some(attr) => attrs.push(attr),
                None => {
                    let text =
                        format!("attribute `{}` = {value} of operator `{}` does not fit", def.name, op.ty);
                    self.obstacles.add(place, text);
                }
            }
        }
        // The reference completes the attributes of operators with a prototype alone.
        if known.inputs.is_empty() && !inputs.is_empty() {
            let absent = |(name, _): &(&str, _)| schema.attr(name).is_none();
            let defaults = gradient_defaults(schema.name)?.into_iter().filter(absent);
            attrs.extend(defaults.filter_map(|(name, default)| write_attr(name, default, None)));
        }
        attrs.extend(self.roles.attrs(index, op));
        Ok(proto::OpDesc { r#type: op.ty.to_string(), inputs, outputs, attrs, is_target: None })
    }

    /// The slots of an operator. Slots that the reference does not have are left out if they are empty, or if they are
    /// outputs without readers.
    fn slots(
        &mut self,
        place: &str,
        op: &OpDesc,
        (slots, known): (&Slots, &[String]),
        schema: &[SlotDef],
    ) -> Vec<op_desc::Var> {
        let mut written = vec![];
        for slot in schema {
            let args = slots.get(slot.name);
            if !known.is_empty() && !known.iter().any(|known| known == slot.name) {
                if args.iter().any(|var| self.read.contains(var)) || (!args.is_empty() && slots == &op.inputs)
                {
                    let text =
                        format!("slot `{}` of operator `{}` is unknown to PaddlePaddle", slot.name, op.ty);
                    self.obstacles.add(place, text);
                }
                continue;
            }
            let arguments = args.iter().map(|var| self.program.name(*var).to_string()).collect();
            let parameter = slot_there(&op.ty, slot.name).into();
            written.push(op_desc::Var { parameter, arguments });
        }
        written
    }
}
