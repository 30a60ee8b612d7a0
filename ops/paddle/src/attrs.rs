//! Attributes between both forms.

use autobwd::{Attr, BlockId, op::AttrType as Kind};

use crate::proto::{AttrType, op_desc};

/// The value of an attribute; `None` for one whose type programs of autobwd do not have, or without a value.
pub(crate) fn read_attr(attr: op_desc::Attr) -> Option<Attr> {
    let block = |index: i32| Some(BlockId::new(usize::try_from(index).ok()?));
    Some(match attr.r#type() {
        AttrType::Int => Attr::I32(attr.i?),
        AttrType::Float => Attr::F32(attr.f?),
        AttrType::String => Attr::Str(attr.s?),
        AttrType::Ints => Attr::I32s(attr.ints),
        AttrType::Floats => Attr::F32s(attr.floats),
        AttrType::Strings => Attr::Strs(attr.strings),
        AttrType::Boolean => Attr::Bool(attr.b?),
        AttrType::Booleans => Attr::Bools(attr.bools),
        AttrType::Block => Attr::Block(block(attr.block_idx?)?),
        AttrType::Long => Attr::I64(attr.l?),
        AttrType::Blocks => Attr::Blocks(attr.blocks_idx.into_iter().map(block).collect::<Option<_>>()?),
        AttrType::Longs => Attr::I64s(attr.longs),
        AttrType::Float64s => Attr::F64s(attr.float64s),
        AttrType::Float64 => Attr::F64(attr.float64?),
        AttrType::Var | AttrType::Vars | AttrType::Scalar | AttrType::Scalars => return None,
    })
}

/// The name of an attribute's type in the file.
pub(crate) fn type_name(attr: &op_desc::Attr) -> String {
    AttrType::try_from(attr.r#type)
        .map_or_else(|_| format!("type {}", attr.r#type), |ty| ty.as_str_name().into())
}

/// The same value in another type of numbers, if that has it: versions of the reference differ in the width of some.
pub(crate) fn convert(value: Attr, to: Kind) -> Option<Attr> {
    if Kind::of(&value) == to {
        return Some(value);
    }
    Some(match (value, to) {
        (Attr::I32(x), Kind::I64) => Attr::I64(x.into()),
        (Attr::I64(x), Kind::I32) => Attr::I32(x.try_into().ok()?),
        (Attr::F32(x), Kind::F64) => Attr::F64(x.into()),
        (Attr::F64(x), Kind::F32) => Attr::F32(x as f32),
        (Attr::I32(x), Kind::Bool) if x == 0 || x == 1 => Attr::Bool(x == 1),
        (Attr::I32(x), Kind::I32s) => Attr::I32s(vec![x]),
        (Attr::I32s(all), Kind::I64s) => Attr::I64s(all.into_iter().map(i64::from).collect()),
        (Attr::I64s(all), Kind::I32s) => {
            Attr::I32s(all.into_iter().map(i32::try_from).collect::<Result<_, _>>().ok()?)
        }
        (Attr::F32s(all), Kind::F64s) => Attr::F64s(all.into_iter().map(f64::from).collect()),
        (Attr::F64s(all), Kind::F32s) => Attr::F32s(all.into_iter().map(|x| x as f32).collect()),
        // Empty lists are written as lists of any type.
        (Attr::I32s(all), Kind::F32s) if all.is_empty() => Attr::F32s(vec![]),
        (Attr::I32s(all), Kind::Strs) if all.is_empty() => Attr::Strs(vec![]),
        _ => return None,
    })
}

/// The type of the reference for a type of autobwd.
fn written_type(kind: Kind) -> AttrType {
    match kind {
        Kind::Bool => AttrType::Boolean,
        Kind::I32 => AttrType::Int,
        Kind::I64 => AttrType::Long,
        Kind::F32 => AttrType::Float,
        Kind::F64 => AttrType::Float64,
        Kind::Str => AttrType::String,
        Kind::Bools => AttrType::Booleans,
        Kind::I32s => AttrType::Ints,
        Kind::I64s => AttrType::Longs,
        Kind::F32s => AttrType::Floats,
        Kind::F64s => AttrType::Float64s,
        Kind::Strs => AttrType::Strings,
        Kind::Block => AttrType::Block,
        // A new type of attributes needs a line above.
        _ => AttrType::Blocks,
    }
}

/// The type of autobwd for a type of the reference.
fn read_type(ty: AttrType) -> Option<Kind> {
    Some(match ty {
        AttrType::Int => Kind::I32,
        AttrType::Float => Kind::F32,
        AttrType::String => Kind::Str,
        AttrType::Ints => Kind::I32s,
        AttrType::Floats => Kind::F32s,
        AttrType::Strings => Kind::Strs,
        AttrType::Boolean => Kind::Bool,
        AttrType::Booleans => Kind::Bools,
        AttrType::Block => Kind::Block,
        AttrType::Long => Kind::I64,
        AttrType::Blocks => Kind::Blocks,
        AttrType::Longs => Kind::I64s,
        AttrType::Float64s => Kind::F64s,
        AttrType::Float64 => Kind::F64,
        AttrType::Var | AttrType::Vars | AttrType::Scalar | AttrType::Scalars => return None,
    })
}

/// An attribute as the reference writes it, of the type that it declares; `None` if the value does not fit.
pub(crate) fn write_attr(name: &str, value: Attr, declared: Option<AttrType>) -> Option<op_desc::Attr> {
    let value = match declared.and_then(read_type) {
        Some(kind) => convert(value, kind)?,
        None => value,
    };
    let mut attr = op_desc::Attr { name: name.into(), ..op_desc::Attr::default() };
    attr.set_type(written_type(Kind::of(&value)));
    let index = |block: BlockId| i32::try_from(block.index()).ok();
    match value {
        Attr::Bool(x) => attr.b = Some(x),
        Attr::I32(x) => attr.i = Some(x),
        Attr::I64(x) => attr.l = Some(x),
        Attr::F32(x) => attr.f = Some(x),
        Attr::F64(x) => attr.float64 = Some(x),
        Attr::Str(x) => attr.s = Some(x),
        Attr::Bools(x) => attr.bools = x,
        Attr::I32s(x) => attr.ints = x,
        Attr::I64s(x) => attr.longs = x,
        Attr::F32s(x) => attr.floats = x,
        Attr::F64s(x) => attr.float64s = x,
        Attr::Strs(x) => attr.strings = x,
        Attr::Block(x) => attr.block_idx = Some(index(x)?),
        Attr::Blocks(x) => attr.blocks_idx = x.into_iter().map(index).collect::<Option<_>>()?,
    }
    Some(attr)
}
