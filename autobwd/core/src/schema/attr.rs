//! Types of attributes, and their conversions to and from programs.

use std::fmt;

use crate::{Attr, BlockId, DType, desc::OpKey};

/// The type of an attribute in programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
#[non_exhaustive]
pub enum AttrType {
    Bool,
    I32,
    I64,
    F32,
    F64,
    Str,
    Bools,
    I32s,
    I64s,
    F32s,
    F64s,
    Strs,
    Block,
    Blocks,
}

impl AttrType {
    /// The type of a value.
    pub fn of(value: &Attr) -> AttrType {
        match value {
            Attr::Bool(_) => AttrType::Bool,
            Attr::I32(_) => AttrType::I32,
            Attr::I64(_) => AttrType::I64,
            Attr::F32(_) => AttrType::F32,
            Attr::F64(_) => AttrType::F64,
            Attr::Str(_) => AttrType::Str,
            Attr::Bools(_) => AttrType::Bools,
            Attr::I32s(_) => AttrType::I32s,
            Attr::I64s(_) => AttrType::I64s,
            Attr::F32s(_) => AttrType::F32s,
            Attr::F64s(_) => AttrType::F64s,
            Attr::Strs(_) => AttrType::Strs,
            Attr::Block(_) => AttrType::Block,
            Attr::Blocks(_) => AttrType::Blocks,
        }
    }

    /// The Rust type, as in messages.
    pub const fn name(self) -> &'static str {
        match self {
            AttrType::Bool => "bool",
            AttrType::I32 => "i32",
            AttrType::I64 => "i64",
            AttrType::F32 => "f32",
            AttrType::F64 => "f64",
            AttrType::Str => "String",
            AttrType::Bools => "Vec<bool>",
            AttrType::I32s => "Vec<i32>",
            AttrType::I64s => "Vec<i64>",
            AttrType::F32s => "Vec<f32>",
            AttrType::F64s => "Vec<f64>",
            AttrType::Strs => "Vec<String>",
            AttrType::Block => "BlockId",
            AttrType::Blocks => "Vec<BlockId>",
        }
    }
}
impl fmt::Display for AttrType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A Rust type that attributes can have.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be an attribute",
    label = "an attribute is a bool, i32, i64, f32, f64, String, a Vec of these, a DType or an `attr_enum!`"
)]
pub trait AttrValue: Clone + fmt::Debug {
    /// Its type in programs.
    const TYPE: AttrType;

    /// The value as stored in programs.
    fn into_attr(self) -> Attr;

    /// Reads the value.
    ///
    /// # Errors
    /// The expected type or values.
    fn from_attr(attr: &Attr) -> Result<Self, String>;

    /// Adds the value to an operator key: different values give different keys.
    fn words(&self, words: &mut OpKey) {
        words.attr(&self.clone().into_attr());
    }
}

fn expected<T>(ty: AttrType, found: &Attr) -> Result<T, String> {
    Err(format!("expected {ty}, found {} ({found})", AttrType::of(found)))
}

macro_rules! attr_values {
    ($($t:ty => $v:ident $(, $word:expr)?;)*) => {$(
        impl AttrValue for $t {
            const TYPE: AttrType = AttrType::$v;

            fn into_attr(self) -> Attr {
                Attr::$v(self)
            }
            fn from_attr(attr: &Attr) -> Result<Self, String> {
                match attr {
                    Attr::$v(x) => Ok(x.clone()),
                    other => expected(AttrType::$v, other),
                }
            }
            $(fn words(&self, words: &mut OpKey) {
                let word: fn(&$t) -> u64 = $word;
                words.put(word(self));
            })?
        }
    )*};
}
attr_values!(
    bool => Bool, |x| u64::from(*x);
    i32 => I32, |x| *x as u64;
    i64 => I64, |x| *x as u64;
    f32 => F32, |x| u64::from(x.to_bits());
    String => Str;
    Vec<bool> => Bools;
    Vec<i32> => I32s;
    Vec<i64> => I64s;
    Vec<f32> => F32s;
    Vec<f64> => F64s;
    Vec<String> => Strs;
    BlockId => Block;
    Vec<BlockId> => Blocks;
);

/// Programs store a number in single precision, as the reference does, if that is exact, else in double precision:
/// numbers in files of the reference keep their values, and none is rounded.
impl AttrValue for f64 {
    const TYPE: AttrType = AttrType::F64;

    fn into_attr(self) -> Attr {
        let single = self as f32;
        if f64::from(single) == self { Attr::F32(single) } else { Attr::F64(self) }
    }
    fn from_attr(attr: &Attr) -> Result<Self, String> {
        match attr {
            Attr::F32(x) => Ok((*x).into()),
            Attr::F64(x) => Ok(*x),
            other => expected(AttrType::F64, other),
        }
    }
    fn words(&self, words: &mut OpKey) {
        words.put(self.to_bits());
    }
}

impl AttrValue for DType {
    const TYPE: AttrType = AttrType::I32;

    fn into_attr(self) -> Attr {
        Attr::I32(self.code())
    }
    fn from_attr(attr: &Attr) -> Result<Self, String> {
        let code = i32::from_attr(attr)?;
        DType::from_code(code).ok_or_else(|| format!("{code} is not the code of a dtype"))
    }
}

/// `None`, −1 in programs, means the dtype of the input.
impl AttrValue for Option<DType> {
    const TYPE: AttrType = AttrType::I32;

    fn into_attr(self) -> Attr {
        Attr::I32(self.map_or(-1, DType::code))
    }
    fn from_attr(attr: &Attr) -> Result<Self, String> {
        match attr {
            Attr::I32(-1) => Ok(None),
            attr => DType::from_attr(attr).map(Some),
        }
    }
}

/// Defines an enum that programs store as a string.
///
/// ```
/// autobwd::op::attr_enum! {
///     /// Order of an image's dimensions.
///     pub enum Layout {
///         /// Batch, channels, height, width.
///         Nchw = "NCHW",
///         /// Batch, height, width, channels.
///         Nhwc = "NHWC",
///     }
/// }
/// use autobwd::{Attr, op::AttrValue};
/// assert_eq!(Layout::Nhwc.into_attr(), Attr::Str("NHWC".into()));
/// let e = Layout::from_attr(&Attr::Str("HWCN".into())).unwrap_err();
/// assert_eq!(e, "expected \"NCHW\" or \"NHWC\", found \"HWCN\"");
/// ```
#[macro_export]
macro_rules! attr_enum {
    ($(#[$meta:meta])* $vis:vis enum $name:ident { $($(#[$vmeta:meta])* $variant:ident = $text:literal),+ $(,)? }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        $vis enum $name { $($(#[$vmeta])* $variant),+ }

        impl $crate::AttrValue for $name {
            const TYPE: $crate::AttrType = $crate::AttrType::Str;

            fn into_attr(self) -> $crate::Attr {
                $crate::Attr::Str(match self { $($name::$variant => $text),+ }.into())
            }
            fn from_attr(attr: &$crate::Attr) -> ::core::result::Result<Self, ::std::string::String> {
                let text = <::std::string::String as $crate::AttrValue>::from_attr(attr)?;
                match text.as_str() {
                    $($text => Ok($name::$variant),)+
                    other => Err(::std::format!("expected {}, found {other:?}", [$(::core::stringify!($text)),+].join(" or "))),
                }
            }
        }
    };
}
