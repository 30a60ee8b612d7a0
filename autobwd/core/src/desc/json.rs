//! Reads and writes programs as JSON.
//!
//! `{"blocks": [{"idx", "parent_idx", "forward_block_idx"?, "vars": […], "ops": […]}], "signature"?, "startup"?, "checksum"?}` with variables
//! `{"name", "type", "dtype", "shape", "persistable", "stop_gradient", "is_parameter", "gradient_of"?}` and operators
//! `{"type", "inputs", "outputs", "attrs": {name: {tag: value}}, "site"?, "origin"?}`: the form of the golden cases.

use std::{collections::BTreeMap, ops::Range};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use super::{
    Attr, AttrMap, Block, BlockId, Name, OpDesc, Origin, Program, ProgramSignature, Site, Slots, Var,
    VarDesc, VarKind,
};
use crate::{DType, Dim, Dims, Error, ErrorKind, Result, checksum};

/// The longest accepted name of an operator type, slot or attribute, in bytes.
const NAME_LIMIT: usize = 256;

#[derive(Serialize, Deserialize, PartialEq)]
struct ProgramJson {
    blocks: Vec<BlockJson>,
    #[serde(default, skip_serializing_if = "ProgramSignature::is_empty")]
    signature: ProgramSignature,
    /// Whether it is a startup program.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    startup: bool,
    /// Of the text before it, without white space; last in the text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    checksum: Option<String>,
}

#[derive(Serialize, Deserialize, PartialEq)]
struct BlockJson {
    idx: usize,
    parent_idx: i64,
    #[serde(default = "none", skip_serializing_if = "is_none")]
    forward_block_idx: i64,
    vars: Vec<VarJson>,
    ops: Vec<OpJson>,
}

#[derive(Serialize, Deserialize, PartialEq)]
struct VarJson {
    name: String,
    #[serde(rename = "type")]
    kind: KindJson,
    dtype: Option<String>,
    shape: Option<Vec<DimJson>>,
    persistable: bool,
    stop_gradient: bool,
    is_parameter: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    gradient_of: Option<String>,
}

/// A dimension: a number, −1 where unknown, or a polynomial of names.
#[derive(Serialize, Deserialize, PartialEq)]
#[serde(untagged)]
enum DimJson {
    Number(i64),
    Named(String),
}

impl DimJson {
    fn of(dim: &Dim) -> DimJson {
        if dim.is_named() { DimJson::Named(dim.to_string()) } else { DimJson::Number(dim.wire()) }
    }

    fn dim(&self) -> Result<Dim> {
        match self {
            // The reference multiplies unknown dimensions with others, so that any negative number means unknown.
            DimJson::Number(n) => Ok(usize::try_from(*n).map_or(Dim::UNKNOWN, Dim::from)),
            DimJson::Named(size) => size.parse(),
        }
    }
}

#[derive(Clone, Copy, Serialize, Deserialize, PartialEq)]
#[serde(rename_all = "snake_case")]
enum KindJson {
    #[serde(alias = "tensor")]
    LodTensor,
    TensorArray,
    SelectedRows,
    StepScopes,
}

#[derive(Serialize, Deserialize, PartialEq)]
struct OpJson {
    #[serde(rename = "type")]
    ty: String,
    inputs: BTreeMap<String, Vec<String>>,
    outputs: BTreeMap<String, Vec<String>>,
    #[serde(default)]
    attrs: BTreeMap<String, AttrJson>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    site: Option<String>,
    #[serde(default, skip_serializing_if = "OriginJson::is_model")]
    origin: OriginJson,
}

#[derive(Clone, Copy, Default, Serialize, Deserialize, PartialEq)]
#[serde(rename_all = "snake_case")]
enum OriginJson {
    #[default]
    Model,
    Seed,
    GradientOf(usize),
    Accumulate,
    ZeroFill,
    Kept,
    RecomputeOf(usize),
    AllReduce,
}
impl OriginJson {
    fn is_model(&self) -> bool {
        *self == OriginJson::Model
    }
}

#[derive(Serialize, Deserialize, PartialEq)]
#[serde(rename_all = "lowercase")]
enum AttrJson {
    Bool(bool),
    Int(i32),
    Long(i64),
    Float(JsonNumber<f32>),
    Float64(JsonNumber<f64>),
    String(String),
    Bools(Vec<bool>),
    Ints(Vec<i32>),
    Longs(Vec<i64>),
    Floats(Vec<JsonNumber<f32>>),
    Float64s(Vec<JsonNumber<f64>>),
    Strings(Vec<String>),
    Block(usize),
    Blocks(Vec<usize>),
}

/// A number; infinities, which JSON cannot write, are strings.
#[derive(Clone, Copy, PartialEq)]
struct JsonNumber<T>(T);
impl<T: Copy + Into<f64>> Serialize for JsonNumber<T> {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        let x: f64 = self.0.into();
        if x.is_finite() { s.serialize_f64(x) } else { s.serialize_str(&x.to_string()) }
    }
}
#[derive(Deserialize)]
#[serde(untagged)]
enum NumberOrText {
    Number(f64),
    Text(String),
}
macro_rules! number {
    ($($t:ty),*) => {$(
        impl<'de> Deserialize<'de> for JsonNumber<$t> {
            fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
                Ok(JsonNumber(match NumberOrText::deserialize(d)? {
                    NumberOrText::Number(x) => x as $t,
                    NumberOrText::Text(t) => match t.as_str() {
                        "inf" => <$t>::INFINITY,
                        "-inf" => <$t>::NEG_INFINITY,
                        "NaN" => return Err(de::Error::custom(
                            "an attribute is NaN: programs with NaN cannot be compared; let an operator compute it",
                        )),
                        other => return Err(de::Error::custom(format!("`{other}` is not a number"))),
                    },
                }))
            }
        }
    )*};
}
number!(f32, f64);

fn none() -> i64 {
    -1
}
fn is_none(index: &i64) -> bool {
    *index == -1
}

impl Program {
    /// The program as JSON.
    pub fn to_json(&self) -> String {
        // All values can be written as JSON: keys are strings, numbers finite.
        serde_json::to_string(&self.to_file(true)).unwrap_or_default()
    }

    /// The program as JSON for a file, with a checksum, by which [`from_json`](Program::from_json) notices damage.
    pub(super) fn to_json_with_checksum(&self) -> String {
        let mut file = self.to_file(true);
        file.checksum = Some(checksum::blank());
        let json = serde_json::to_string(&file).unwrap_or_default();
        let range = checksum_range(&json);
        json[..range.start].to_string()
            + &checksum::checksum(json.as_bytes(), range.clone())
            + &json[range.end..]
    }

    /// Reads a program from JSON. If the text has a checksum, as the text of [`save`](Program::save) has, it must be right; a
    /// program that was edited by hand is read without the key `checksum`.
    ///
    /// # Errors
    /// Text that is not JSON of this form (with line and column), text that differs from what was saved in a byte that is
    /// not white space, blocks or variables that contradict each other,
    /// blocks that contain themselves or are nested more than 32 deep. The operators themselves are checked by
    /// [`verify`](crate::verify()), before such a program is run or differentiated.
    pub fn from_json(json: &str) -> Result<Program> {
        let file: ProgramJson = serde_json::from_str(json)
            .map_err(|e| Error::new(ErrorKind::Format, format!("not a program in JSON: {e}")).caused_by(e))?;
        check_damage(json, file.checksum.as_deref())?;
        file.into_program()
    }

    pub(super) fn same_as(&self, other: &Program) -> bool {
        self.to_file(false) == other.to_file(false)
    }

    fn to_file(&self, sites: bool) -> ProgramJson {
        let index = |b: Option<BlockId>| b.map_or(-1, |b| b.index() as i64);
        let blocks = self.blocks().iter().enumerate().map(|(idx, block)| BlockJson {
            idx,
            parent_idx: index(block.parent),
            forward_block_idx: index(block.forward),
            vars: block.vars.iter().map(|(v, d)| self.var_to_json(*v, d)).collect(),
            ops: block.ops.iter().map(|op| self.op_to_json(op, sites)).collect(),
        });
        ProgramJson {
            blocks: blocks.collect(),
            signature: self.signature().clone(),
            startup: self.startup,
            checksum: None,
        }
    }

    fn var_to_json(&self, var: Var, desc: &VarDesc) -> VarJson {
        VarJson {
            name: self.name(var).into(),
            kind: match desc.kind {
                VarKind::Tensor => KindJson::LodTensor,
                VarKind::TensorArray => KindJson::TensorArray,
                VarKind::SelectedRows => KindJson::SelectedRows,
                VarKind::StepScopes => KindJson::StepScopes,
            },
            dtype: Some(desc.dtype.name().into()),
            shape: Some(desc.dims.iter().map(DimJson::of).collect()),
            persistable: desc.persistable,
            stop_gradient: desc.stop_gradient,
            is_parameter: desc.parameter,
            gradient_of: desc.gradient_of.map(|v| self.name(v).into()),
        }
    }

    fn op_to_json(&self, op: &OpDesc, sites: bool) -> OpJson {
        let slots = |slots: &Slots| {
            let named = |args: &[Var]| args.iter().map(|v| self.name(*v).to_string()).collect();
            slots.iter().map(|(slot, args)| (slot.to_string(), named(args))).collect()
        };
        OpJson {
            ty: op.ty.to_string(),
            inputs: slots(&op.inputs),
            outputs: slots(&op.outputs),
            attrs: op.attrs.iter().map(|(n, a)| (n.to_string(), a.into())).collect(),
            site: op.site.filter(|_| sites).map(|s| s.to_string()),
            origin: match op.origin {
                Origin::Model => OriginJson::Model,
                Origin::Seed => OriginJson::Seed,
                Origin::Gradient { of } => OriginJson::GradientOf(of),
                Origin::Accumulate => OriginJson::Accumulate,
                Origin::ZeroFill => OriginJson::ZeroFill,
                Origin::Kept => OriginJson::Kept,
                Origin::Recompute { of } => OriginJson::RecomputeOf(of),
                Origin::AllReduce => OriginJson::AllReduce,
            },
        }
    }
}

impl VarJson {
    fn desc(&self, program: &mut Program) -> Result<VarDesc> {
        let dtype = match &self.dtype {
            // Step scopes have no dtype.
            None => DType::F32,
            Some(name) => DType::from_name(name)
                .ok_or_else(|| format_error(format!("variable `{}`: unknown dtype `{name}`", self.name)))?,
        };
        let dims: Result<Dims> = self.shape.iter().flatten().map(DimJson::dim).collect();
        let dims = dims.map_err(|e| format_error(format!("variable `{}`: {e}", self.name)))?;
        Ok(VarDesc {
            kind: match self.kind {
                KindJson::LodTensor => VarKind::Tensor,
                KindJson::TensorArray => VarKind::TensorArray,
                KindJson::SelectedRows => VarKind::SelectedRows,
                KindJson::StepScopes => VarKind::StepScopes,
            },
            dtype,
            dims,
            persistable: self.persistable,
            stop_gradient: self.stop_gradient,
            parameter: self.is_parameter,
            gradient_of: self.gradient_of.as_ref().map(|name| program.var(name)),
        })
    }
}

/// Where the checksum of a program is in its text, which ends with `"}`.
fn checksum_range(json: &str) -> Range<usize> {
    let end = json.len().saturating_sub(2);
    end.saturating_sub(checksum::LEN)..end
}

/// Refuses a text whose checksum is not its own.
fn check_damage(json: &str, stored: Option<&str>) -> Result<()> {
    // A damaged key hides the checksum.
    let may_be_hidden = json.contains(checksum::PREFIX);
    if stored.is_none() && !may_be_hidden {
        return Ok(());
    }
    let json = without_white_space(json);
    let range = checksum_range(&json);
    let is_last = json.get(range.clone()).is_some_and(checksum::is_checksum);
    let text = match stored {
        None if !is_last || !json[..range.start].ends_with(":\"") => return Ok(()),
        Some(stored) if is_last && json[..range.start].ends_with(",\"checksum\":\"") => {
            let expected = checksum::checksum(json.as_bytes(), range);
            if stored == expected {
                return Ok(());
            }
            format!("its checksum is `{stored}`, but its text has the checksum `{expected}`")
        }
        _ => "its checksum is not the last entry, `checksum`".into(),
    };
    let text = format!(
        "not the program that was saved: {text}; if it was edited on purpose, remove the entry `checksum`"
    );
    Err(format_error(text))
}

/// JSON without the white space between tokens.
fn without_white_space(json: &str) -> String {
    let (mut is_string, mut is_escaped) = (false, false);
    let mut kept = String::with_capacity(json.len());
    for c in json.chars() {
        is_string ^= c == '"' && !is_escaped;
        is_escaped = c == '\\' && is_string && !is_escaped;
        if is_string || !matches!(c, ' ' | '\t' | '\n' | '\r') {
            kept.push(c);
        }
    }
    kept
}

fn format_error(message: String) -> Error {
    Error::new(ErrorKind::Format, message)
}

fn name(text: &str) -> Result<Name> {
    if text.len() > NAME_LIMIT {
        return Err(format_error(format!(
            "a name has {} bytes, more than the limit of {NAME_LIMIT}",
            text.len()
        )));
    }
    Ok(Name::new(text))
}

impl ProgramJson {
    fn into_program(self) -> Result<Program> {
        let mut program = Program::new();
        let count = self.blocks.len();
        if count == 0 {
            return Err(format_error("a program has at least one block".into()));
        }
        for (index, block) in self.blocks.iter().enumerate() {
            let refers = |to: i64, what: &str, below: usize| match usize::try_from(to) {
                _ if to == -1 => Ok(None),
                Ok(i) if i < below => Ok(Some(BlockId::new(i))),
                _ => Err(format_error(format!("block {index}: {what} block {to} does not exist before it"))),
            };
            if block.idx != index {
                return Err(format_error(format!("block {} is at position {index}", block.idx)));
            }
            let (parent, forward) = (
                refers(block.parent_idx, "parent", index)?,
                refers(block.forward_block_idx, "forward", count)?,
            );
            if (index == 0) != parent.is_none() {
                return Err(format_error(format!("block {index}: only the first block has no parent")));
            }
            if index > 0 {
                program.add_block(parent, forward);
            }
        }
        for (index, block) in self.blocks.into_iter().enumerate() {
            let mut built = Block::default();
            for var in &block.vars {
                if built.vars.insert(program.var(&var.name), var.desc(&mut program)?).is_some() {
                    return Err(format_error(format!("block {index} declares `{}` twice", var.name)));
                }
            }
            for op in block.ops {
                built.ops.push(op.into_desc(&mut program, count)?);
            }
            if let Some(block) = program.block_mut(BlockId::new(index)) {
                block.vars = built.vars;
                block.ops = built.ops;
            }
        }
        (program.loaded, program.startup) = (true, self.startup);
        program.check_structure().map_err(|e| format_error(e.to_string()))?;
        program.set_signature(self.signature).map_err(|e| format_error(e.to_string()))?;
        Ok(program)
    }
}

impl OpJson {
    fn into_desc(self, program: &mut Program, blocks: usize) -> Result<OpDesc> {
        let mut slots = |from: BTreeMap<String, Vec<String>>| -> Result<Slots> {
            let mut slots = Slots::default();
            for (slot, args) in from {
                slots.set(name(&slot)?, args.iter().map(|v| program.var(v)));
            }
            Ok(slots)
        };
        let mut attrs = AttrMap::default();
        for (attr, value) in self.attrs {
            attrs.set(name(&attr)?, value.into_attr(blocks)?);
        }
        Ok(OpDesc {
            ty: name(&self.ty)?,
            inputs: slots(self.inputs)?,
            outputs: slots(self.outputs)?,
            attrs,
            site: self.site.map(|s| name(&s)).transpose()?.map(Site::Loaded),
            origin: match self.origin {
                OriginJson::Model => Origin::Model,
                OriginJson::Seed => Origin::Seed,
                OriginJson::GradientOf(of) => Origin::Gradient { of },
                OriginJson::Accumulate => Origin::Accumulate,
                OriginJson::ZeroFill => Origin::ZeroFill,
                OriginJson::Kept => Origin::Kept,
                OriginJson::RecomputeOf(of) => Origin::Recompute { of },
                OriginJson::AllReduce => Origin::AllReduce,
            },
        })
    }
}

impl From<&Attr> for AttrJson {
    fn from(attr: &Attr) -> AttrJson {
        match attr {
            Attr::Bool(x) => AttrJson::Bool(*x),
            Attr::I32(x) => AttrJson::Int(*x),
            Attr::I64(x) => AttrJson::Long(*x),
            Attr::F32(x) => AttrJson::Float(JsonNumber(*x)),
            Attr::F64(x) => AttrJson::Float64(JsonNumber(*x)),
            Attr::Str(x) => AttrJson::String(x.clone()),
            Attr::Bools(x) => AttrJson::Bools(x.clone()),
            Attr::I32s(x) => AttrJson::Ints(x.clone()),
            Attr::I64s(x) => AttrJson::Longs(x.clone()),
            Attr::F32s(x) => AttrJson::Floats(x.iter().copied().map(JsonNumber).collect()),
            Attr::F64s(x) => AttrJson::Float64s(x.iter().copied().map(JsonNumber).collect()),
            Attr::Strs(x) => AttrJson::Strings(x.clone()),
            Attr::Block(b) => AttrJson::Block(b.index()),
            Attr::Blocks(bs) => AttrJson::Blocks(bs.iter().map(|b| b.index()).collect()),
        }
    }
}

impl AttrJson {
    fn into_attr(self, blocks: usize) -> Result<Attr> {
        let block = |index: usize| match index {
            i if i < blocks => Ok(BlockId::new(i)),
            i => {
                Err(format_error(format!("an attribute refers to block {i}, but there are {blocks} blocks")))
            }
        };
        Ok(match self {
            AttrJson::Bool(x) => Attr::Bool(x),
            AttrJson::Int(x) => Attr::I32(x),
            AttrJson::Long(x) => Attr::I64(x),
            AttrJson::Float(x) => Attr::F32(x.0),
            AttrJson::Float64(x) => Attr::F64(x.0),
            AttrJson::String(x) => Attr::Str(x),
            AttrJson::Bools(x) => Attr::Bools(x),
            AttrJson::Ints(x) => Attr::I32s(x),
            AttrJson::Longs(x) => Attr::I64s(x),
            AttrJson::Floats(x) => Attr::F32s(x.into_iter().map(|x| x.0).collect()),
            AttrJson::Float64s(x) => Attr::F64s(x.into_iter().map(|x| x.0).collect()),
            AttrJson::Strings(x) => Attr::Strs(x),
            AttrJson::Block(x) => Attr::Block(block(x)?),
            AttrJson::Blocks(xs) => Attr::Blocks(xs.into_iter().map(block).collect::<Result<_>>()?),
        })
    }
}
