//! The arguments of a StableHLO module, read from its text: plugins do not report them.
//!
//! Every run checks dtypes, shapes and devices against them before the plugin does.

use std::{borrow::Cow, fmt};

use autobwd::{DType, Error, ErrorKind, Meta, Result};

/// An argument of a compiled program.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Parameter {
    /// Its name in the text, `%arg0` say.
    pub name: String,
    /// Element type.
    pub dtype: DType,
    /// Dimensions; of the part on a device if the text divides it (`mhlo.sharding`).
    pub dims: Vec<usize>,
    /// Whether the program may reuse its memory for a result (`tf.aliasing_output`, `jax.buffer_donor`).
    pub donated: bool,
}

impl Parameter {
    /// Dtype and shape.
    pub fn meta(&self) -> Meta {
        Meta::new(self.dtype, &*self.dims)
    }
}

/// As an argument in a StableHLO module.
impl fmt::Display for Parameter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: tensor<", self.name)?;
        self.dims.iter().try_for_each(|d| write!(f, "{d}x"))?;
        let element = ELEMENTS.iter().find(|(dtype, _)| *dtype == self.dtype).map_or("", |(_, name)| name);
        write!(f, "{element}>{}", if self.donated { " {jax.buffer_donor = true}" } else { "" })
    }
}

/// The names of dtypes in StableHLO.
const ELEMENTS: [(DType, &str); 8] = [
    (DType::Bool, "i1"),
    (DType::U8, "ui8"),
    (DType::I32, "i32"),
    (DType::I64, "i64"),
    (DType::F16, "f16"),
    (DType::BF16, "bf16"),
    (DType::F32, "f32"),
    (DType::F64, "f64"),
];

/// The arguments of `main`.
///
/// # Errors
/// A text without `func.func @main(…)`; an argument that tensors cannot hold.
pub(super) fn parameters(module: &str) -> Result<Vec<Parameter>> {
    let text = without_comments(module);
    parameters_of(
        main_arguments(&text).ok_or_else(|| invalid("it has no `func.func public @main(…)`".into()))?,
    )
}

/// The arguments of a list, as [`Parameter`] prints them.
pub(super) fn parameters_of(list: &str) -> Result<Vec<Parameter>> {
    split(list).into_iter().map(parameter).collect()
}

fn invalid(why: String) -> Error {
    Error::new(ErrorKind::Program, format!("cannot read the arguments of the StableHLO module: {why}"))
}

fn parameter(text: &str) -> Result<Parameter> {
    let wrong =
        || invalid(format!("`{}` is not an argument whose type is a tensor of known shape", text.trim()));
    let (name, rest) = text.split_once(':').ok_or_else(wrong)?;
    let rest = rest.trim_start().strip_prefix("tensor<").ok_or_else(wrong)?;
    let (ty, attributes) = rest.split_once('>').ok_or_else(wrong)?;
    let (dims, element) = ty.rsplit_once('x').map_or((None, ty), |(dims, element)| (Some(dims), element));
    let dims: Result<Vec<usize>, _> = dims.into_iter().flat_map(|d| d.split('x')).map(str::parse).collect();
    let dtype = ELEMENTS.iter().find(|(_, name)| *name == element).map(|(dtype, _)| *dtype);
    let donated = attributes.contains("tf.aliasing_output")
        || attributes.split_once("jax.buffer_donor").is_some_and(|(_, value)| {
            !value.trim_start().strip_prefix('=').is_some_and(|value| value.trim_start().starts_with("false"))
        });
    let (Ok(mut dims), Some(dtype)) = (dims, dtype) else { return Err(wrong()) };
    let tiles =
        attributes.split_once("mhlo.sharding = \"{devices=[").and_then(|(_, tiles)| tiles.split_once(']'));
    if let Some((tiles, _)) = tiles {
        for (dim, tiles) in dims.iter_mut().zip(tiles.split(',')) {
            *dim = dim.div_ceil(tiles.trim().parse().ok().filter(|tiles| *tiles > 0).ok_or_else(wrong)?);
        }
    }
    Ok(Parameter { name: name.trim().into(), dtype, dims, donated })
}

/// The text between the parentheses of `func.func @main(…)`.
fn main_arguments(text: &str) -> Option<&str> {
    let mut from = 0;
    while let Some(at) = text.get(from..)?.find("@main") {
        let (before, after) = (text.get(..from + at)?, text.get(from + at + "@main".len()..)?);
        from += at + 1;
        let word = before.split_whitespace().next_back().unwrap_or("");
        let declares = matches!(word, "func.func" | "public" | "private" | "nested");
        if let (true, Some(list)) = (declares, after.trim_start().strip_prefix('(')) {
            return list.get(..closing(list)?);
        }
    }
    None
}

/// A character of a text, and its depth in brackets; characters of string literals are left out.
fn outside_strings(text: &str) -> impl Iterator<Item = (usize, char, usize)> {
    let (mut depth, mut in_string, mut escaped, mut last) = (0_usize, false, false, ' ');
    text.char_indices().filter_map(move |(at, c)| {
        if in_string {
            in_string = escaped || c != '"';
            escaped = !escaped && c == '\\';
            return None;
        }
        in_string = c == '"';
        let arrow = last == '-' && c == '>';
        last = c;
        match c {
            '(' | '[' | '{' | '<' => depth += 1,
            // Below 0 is the end of the enclosing list.
            ')' if depth == 0 => return Some((at, c, 0)),
            ')' | ']' | '}' => depth = depth.saturating_sub(1),
            '>' if !arrow => depth = depth.saturating_sub(1),
            _ => {}
        }
        // An opening bracket is at depth 1 or more; a closing one, at the depth of what follows it.
        Some((at, c, depth + usize::from(c == ')')))
    })
}

/// The position of the parenthesis that closes a list.
fn closing(list: &str) -> Option<usize> {
    outside_strings(list).find(|(_, c, depth)| *c == ')' && *depth == 0).map(|(at, ..)| at)
}

/// The items of a list.
fn split(list: &str) -> Vec<&str> {
    let commas = outside_strings(list).filter(|(_, c, depth)| *c == ',' && *depth == 0).map(|(at, ..)| at);
    let mut start = 0;
    let mut items: Vec<&str> = vec![];
    for end in commas.chain([list.len()]) {
        items.extend(list.get(start..end));
        start = end + 1;
    }
    items.retain(|item| !item.trim().is_empty());
    items
}

/// The text without comments.
fn without_comments(text: &str) -> Cow<'_, str> {
    if !text.contains("//") {
        return Cow::Borrowed(text);
    }
    let mut kept = String::with_capacity(text.len());
    for line in text.lines() {
        let slashes =
            outside_strings(line).find(|(at, ..)| line.get(*at..).is_some_and(|rest| rest.starts_with("//")));
        kept.push_str(line.get(..slashes.map_or(line.len(), |(at, ..)| at)).unwrap_or(line));
        kept.push('\n');
    }
    Cow::Owned(kept)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(arguments: &str) -> Result<Vec<Parameter>> {
        parameters(&format!(
            "module {{ // the function @main(%no: tensor<f32>)\n func.func private @main2(%z: tensor<f32>)\n \
             func.func public @main({arguments}) -> (tensor<f32>) {{\n call @main(%a) : () -> () }}}}"
        ))
    }

    #[test]
    fn arguments_are_read_from_the_text() {
        let found = read(
            "%arg0: tensor<2x3xf32> {tf.aliasing_output = 1 : i32, mhlo.sharding = \"{replicated}, (x)>\"}, \
             %n: tensor<i64> loc(\"a, b\"), %b: tensor<0x4xi1> {jax.buffer_donor = true}, // last\n \
             %c: tensor<1xui8> {jax.buffer_donor = false, map = affine_map<(d0) -> (d0)>}, %d: tensor<f64>, \
             %e: tensor<4x6xf32> {mhlo.sharding = \"{devices=[1,2]<=[2]}\"}",
        )
        .unwrap();
        let text: Vec<String> = found.iter().map(ToString::to_string).collect();
        assert_eq!(
            text,
            [
                "%arg0: tensor<2x3xf32> {jax.buffer_donor = true}",
                "%n: tensor<i64>",
                "%b: tensor<0x4xi1> {jax.buffer_donor = true}",
                "%c: tensor<1xui8>",
                "%d: tensor<f64>",
                "%e: tensor<4x3xf32>"
            ]
        );
        assert_eq!(parameters_of(&text.join(", ")).unwrap(), found);
        assert_eq!(read("").unwrap(), []);
    }

    #[test]
    fn other_texts_are_errors() {
        let message = |arguments| read(arguments).unwrap_err().to_string();
        let start = "cannot read the arguments of the StableHLO module: ";
        let end = " is not an argument whose type is a tensor of known shape";
        assert_eq!(message("%x: tensor<?xf32>"), format!("{start}`%x: tensor<?xf32>`{end}"));
        assert_eq!(message("%x: tensor<2xf8E5M2>"), format!("{start}`%x: tensor<2xf8E5M2>`{end}"));
        assert_eq!(message("%t: !stablehlo.token"), format!("{start}`%t: !stablehlo.token`{end}"));
        for text in ["", "module {", "func.func @main(", "func.func @main(\"", "@main", "@main()"] {
            let e = parameters(text).unwrap_err();
            assert_eq!(e.to_string(), format!("{start}it has no `func.func public @main(…)`"));
        }
    }
}
