//! Programs from the reference's messages.
//!
//! Operators, slots and attributes are mapped to the registered ones; everything that cannot be mapped is one list.
//! Declared shapes of intermediate values are replaced by inferred ones, because versions of PaddlePaddle declare them
//! differently. Outputs that files for inference lack are added. Updates with master weights become updates of these
//! and casts to the parameters.

mod composed_gradients;
mod constant_arguments;
mod earlier;
mod op;

use std::collections::{HashMap, HashSet};

use autobwd::{
    Attr, BlockId, DType, Dims, OpInfoMap, Program, Result, VarDesc,
    op::OpInfo,
    program::{OpDesc, Var, VarKind, Vars},
    tensor::Dim,
};
use autobwd_core::__private::Obstacles;
use autobwd_ops::{mixed_precision::lower_master_weights, model::infer_shapes};

use crate::{
    proto::{self, var_type::Type},
    reference::true_dtype,
    tensors,
};

use composed_gradients::{ComposedForwards, ComposedGradient, lower_composed_gradients};
use constant_arguments::Constants;

/// A program, and what the file says about its inputs and outputs.
pub(crate) struct ImportedProgram {
    pub(crate) program: Program,
    pub(crate) feeds: Vec<String>,
    pub(crate) fetches: Vec<String>,
}

/// The program of a file, with the operators that `ops` knows.
///
/// # Errors
/// Everything that stands in the way, as one list: unknown operators, slots and attributes, kinds of variables, dtypes,
/// blocks that are not there; all that verification finds.
pub(crate) fn import(file: proto::ProgramDesc, ops: &OpInfoMap, source: &str) -> Result<ImportedProgram> {
    let failed = format!("{source} cannot be loaded");
    let mut import = Import {
        ops: ops.iter().map(|info| (info.schema().name, info)).collect(),
        program: Program::new(),
        obstacles: Obstacles::default(),
        feeds: vec![],
        fetches: vec![],
        added: vec![],
        forwards: ComposedForwards::default(),
        gradients: vec![],
    };
    import.blocks(&file.blocks);
    let constants = Constants::of(&file);
    for (index, block) in file.blocks.into_iter().enumerate() {
        import.block(index, block, &constants);
    }
    let Import { mut program, mut obstacles, feeds, fetches, gradients, .. } = import;
    obstacles.require_none(&failed)?;
    obstacles.note("", program.check_structure());
    obstacles.require_none(&failed)?;
    if !gradients.is_empty() {
        // Compositions depend on the number of dimensions.
        infer_shapes(&mut program, ops);
        obstacles.note("", lower_composed_gradients(&mut program, &gradients, ops));
        obstacles.require_none(&failed)?;
    }
    drop_integer_gradients(&mut program, &fetches);
    if let Some(lowered) = obstacles.note("", lower_master_weights(&program)) {
        program = lowered;
    }
    obstacles.require_none(&failed)?;
    infer_shapes(&mut program, ops);
    program.mark_loaded();
    obstacles.note("", ops.verify(&program));
    obstacles.require_none(&failed)?;
    let in_order = |mut named: Vec<(i32, String)>| {
        named.sort_by_key(|(column, _)| *column);
        named.into_iter().map(|(_, name)| name).collect()
    };
    Ok(ImportedProgram { program, feeds: in_order(feeds), fetches: in_order(fetches) })
}

struct Import {
    /// By type: [`OpInfoMap::get`] searches for similar names where there is none.
    ops: HashMap<&'static str, &'static OpInfo>,
    program: Program,
    obstacles: Obstacles,
    /// Variables that are fed and fetched, with their position.
    feeds: Vec<(i32, String)>,
    fetches: Vec<(i32, String)>,
    /// Outputs that the block lacks.
    added: Vec<Var>,
    /// Operators whose gradients are composed, and their gradient operators in the file.
    forwards: ComposedForwards,
    gradients: Vec<ComposedGradient>,
}

impl Import {
    /// Adds empty blocks.
    fn blocks(&mut self, blocks: &[proto::BlockDesc]) {
        if blocks.is_empty() {
            self.obstacles.add("", "there is no block");
        }
        for (index, block) in blocks.iter().enumerate() {
            let earlier = |i: i32| usize::try_from(i).ok().filter(|i| *i < index).map(BlockId::new);
            let forward = block.forward_block_idx.filter(|forward| *forward != -1);
            let known =
                forward.map(|i| usize::try_from(i).ok().filter(|i| *i < blocks.len()).map(BlockId::new));
            match (index, earlier(block.parent_idx), known) {
                _ if block.idx != index as i32 => {
                    self.obstacles.add("", format!("block {} is at position {index}", block.idx));
                }
                (_, _, Some(None)) => {
                    self.obstacles.add("", format!("block {index}: its forward block does not exist"));
                }
                (0, ..) => {}
                (_, Some(parent), forward) => {
                    self.program.add_block(Some(parent), forward.flatten());
                }
                _ => self.obstacles.add("", format!("block {index}: its parent is not a block before it")),
            }
        }
    }

    fn block(&mut self, index: usize, block: proto::BlockDesc, constants: &Constants) {
        let mut vars = Vars::default();
        // Variables of kinds that programs do not have: holders of inputs and outputs, readers.
        let mut others: HashMap<Var, &'static str> = HashMap::new();
        // It is no variable, but the reference declares it where the gradient of a branch needs none.
        for var in block.vars.into_iter().filter(|var| var.name != "@EMPTY@") {
            let name = self.program.var(&var.name);
            match self.var(index, &var) {
                Ok(Some(desc)) if vars.get(&name).is_none() => {
                    vars.insert(name, desc);
                }
                Ok(Some(_)) => {
                    self.obstacles.add("", format!("block {index} declares `{}` twice", var.name));
                }
                Ok(None) => {
                    others.insert(name, var.r#type.r#type().as_str_name());
                }
                Err(()) => {}
            }
        }
        let mut descs: Vec<OpDesc> = vec![];
        let ops = block.ops.into_iter().map(earlier::modern).map(|op| constants.as_attributes(op));
        for (i, op) in ops.enumerate() {
            let place = format!("block {index}, operator {i}");
            match &*op.r#type {
                "feed" | "fetch" => self.feed_or_fetch(&place, &op, &mut vars),
                _ => {
                    let (values, op) = self.values_of_assignment(op);
                    descs.extend(values.and_then(|values| self.op(&place, values)));
                    let at = (BlockId::new(index), descs.len());
                    descs.extend(self.composed_gradient(at, &op).or_else(|| self.op(&place, op)));
                }
            }
        }
        for var in self.added.drain(..) {
            // Shape rules declare them.
            vars.insert(var, VarDesc::new(DType::F32, Dims::default()));
        }
        for op in &descs {
            for (slot, args) in op.outputs.iter() {
                let Some(dtype) = true_dtype(&op.ty, &slot) else { continue };
                for var in args {
                    vars.get_mut(var).into_iter().for_each(|desc| desc.dtype = dtype);
                }
            }
        }
        declare_cast_inputs(&mut descs, &vars);
        forget_false_dims(&descs, &mut vars);
        complete_reshape_gradients(&mut descs);
        for var in descs.iter().flat_map(|op| op.reads().chain(op.writes())) {
            if let Some(kind) = others.get(&var) {
                let text = format!("variable `{}` of kind {kind} is not supported", self.program.name(var));
                self.obstacles.add(format!("block {index}"), text);
            }
        }
        if let Some(block) = self.program.block_mut(BlockId::new(index)) {
            (block.vars, block.ops) = (vars, descs);
        }
    }

    /// A declaration; `None` for a kind that programs do not have, an error after noting an obstacle.
    fn var(&mut self, index: usize, var: &proto::VarDesc) -> Result<Option<VarDesc>, ()> {
        let lod = |desc: &proto::var_type::LoDTensorDesc| Some(desc.tensor.clone());
        let ty = &var.r#type;
        let (kind, tensor) = match ty.r#type() {
            Type::LodTensor => (VarKind::Tensor, ty.lod_tensor.as_ref().and_then(lod)),
            Type::SelectedRows => (VarKind::SelectedRows, ty.selected_rows.clone()),
            Type::LodTensorArray => {
                (VarKind::TensorArray, ty.tensor_array.as_ref().map(|array| array.tensor.clone()))
            }
            Type::StepScopes => (VarKind::StepScopes, None),
            _ => return Ok(None),
        };
        let (dtype, dims) = match &tensor {
            None => (DType::F32, Dims::default()),
            Some(tensor) => {
                let ty = tensor.data_type();
                let Some(dtype) = tensors::dtype(ty).filter(|_| tensor.data_type == ty as i32) else {
                    let text = format!("dtype {} is not supported", ty.as_str_name());
                    self.obstacles.add(format!("block {index}, variable `{}`", var.name), text);
                    return Err(());
                };
                // The reference multiplies unknown dimensions with others, so that any negative number means unknown.
                let dims: Vec<i64> = tensor.dims.iter().map(|dim| (*dim).max(-1)).collect();
                let place = format!("block {index}, variable `{}`", var.name);
                (dtype, self.obstacles.note(place, Dims::from_wire(&dims)).ok_or(())?)
            }
        };
        Ok(Some(VarDesc {
            kind,
            persistable: var.persistable(),
            parameter: var.is_parameter() && var.persistable(),
            stop_gradient: var.stop_gradient(),
            ..VarDesc::new(dtype, dims)
        }))
    }

    /// Notes an input or an output of the program. Gradients stop at inputs.
    fn feed_or_fetch(&mut self, place: &str, op: &proto::OpDesc, vars: &mut Vars) {
        let (slots, slot) = match &*op.r#type {
            "feed" => (&op.outputs, "Out"),
            _ => (&op.inputs, "X"),
        };
        let args = slots.iter().find(|args| args.parameter == slot).map_or(&[][..], |args| &args.arguments);
        let column = op.attrs.iter().find(|attr| attr.name == "col").and_then(|attr| attr.i).unwrap_or(0);
        let [name] = args else {
            return self.obstacles.add(place, format!("`{}` needs one variable", op.r#type));
        };
        match vars.get_mut(&self.program.var(name)) {
            None => self.obstacles.add(place, format!("`{}`: `{name}` is not declared", op.r#type)),
            Some(desc) if op.r#type == "feed" => {
                desc.stop_gradient = true;
                self.feeds.push((column, name.clone()));
            }
            Some(_) => self.fetches.push((column, name.clone())),
        }
    }
}

/// Sets the dtype that a cast of a persistable variable reads to the variable's: the reference casts from the dtype of
/// the value, and its startup programs of mixed precision call float32 parameters 16-bit ones.
fn declare_cast_inputs(ops: &mut [OpDesc], vars: &Vars) {
    for op in ops.iter_mut().filter(|op| op.ty == "cast") {
        let x = op.inputs.get("X").first().and_then(|x| vars.get(x));
        if let Some(desc) = x.filter(|desc| desc.persistable) {
            op.attrs.set("in_dtype", Attr::I32(desc.dtype.code()));
        }
    }
}

/// Makes the dimensions unknown that follow from a false declaration: the reference declares an `expand_v2` to a computed shape
/// with the dimensions of its input, and the boxes that `matrix_nms` keeps with the number of all boxes.
fn forget_false_dims(ops: &[OpDesc], vars: &mut Vars) {
    let mut unknown: HashSet<Var> = HashSet::new();
    for op in ops {
        let tensors = ["Shape", "expand_shapes_tensor"];
        let is_false = match &*op.ty {
            "expand_v2" => tensors.iter().any(|slot| !op.inputs.get(slot).is_empty()),
            ty => ty == "matrix_nms",
        };
        if is_false || op.reads().any(|var| unknown.contains(&var)) {
            unknown.extend(op.writes());
        }
    }
    for var in unknown {
        if let Some(desc) = vars.get_mut(&var).filter(|desc| !desc.persistable) {
            desc.dims = desc.dims.iter().map(|_| Dim::UNKNOWN).collect();
        }
    }
}

/// Removes the operators that compute gradients of integers alone, which nothing else reads: the reference appends them where
/// integers become floating point numbers.
fn drop_integer_gradients(program: &mut Program, fetches: &[(i32, String)]) {
    let fetched: HashSet<Var> = fetches.iter().map(|(_, name)| program.var(name)).collect();
    for index in (0..program.blocks().len()).map(BlockId::new) {
        let Some(block) = program.block(index) else { continue };
        let is_integer = |var: Var| {
            let desc = program.lookup(index, var);
            desc.is_some_and(|desc| !desc.dtype.is_float() && !desc.persistable)
        };
        let mut kept = vec![];
        // From the last one on: an operator goes after those that read it.
        let mut needed = fetched.clone();
        let others = program.blocks().iter().filter(|other| !std::ptr::eq(*other, block));
        needed.extend(others.flat_map(|other| &other.ops).flat_map(OpDesc::reads));
        for op in block.ops.iter().rev() {
            let is_gradient = op.writes().all(|var| program.name(var).contains("@GRAD"));
            let inner = |var: &Var| block.vars.contains_key(var);
            let dead = |var: Var| is_integer(var) && inner(&var) && !needed.contains(&var);
            if is_gradient && op.writes().next().is_some() && op.writes().all(dead) {
                continue;
            }
            needed.extend(op.reads());
            kept.push(op.clone());
        }
        kept.reverse();
        if let Some(block) = program.block_mut(index) {
            block.ops = kept;
        }
    }
}

/// Adds the tensors of the shape to the gradient operators of `reshape2`: the reference's do not read them, and the shape
/// rule needs to know that the shape is computed.
fn complete_reshape_gradients(ops: &mut [OpDesc]) {
    let mut shapes: HashMap<Var, Vec<(&'static str, Vec<Var>)>> = HashMap::new();
    for op in ops {
        let tensors = ["Shape", "ShapeTensor"].map(|slot| (slot, op.inputs.get(slot).to_vec()));
        let given = tensors.iter().any(|(_, tensors)| !tensors.is_empty());
        match (&*op.ty, op.outputs.get("XShape"), op.inputs.get("XShape")) {
            ("reshape2", [x_shape], _) if given => {
                shapes.insert(*x_shape, tensors.to_vec());
            }
            ("reshape2_grad", _, [x_shape]) if !given => {
                for (slot, tensors) in shapes.get(x_shape).into_iter().flatten() {
                    op.inputs.set(*slot, tensors.iter().copied());
                }
            }
            _ => {}
        }
    }
}
