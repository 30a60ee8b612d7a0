//! Answers: nested lists of a JSON object from tensors.

use autobwd::{
    DType, Error, ErrorKind, Result, Tensor,
    tensor::{Bool, Element},
};
use serde::{Serialize, Serializer, ser::SerializeMap};

/// The JSON object of these outputs, by name.
///
/// # Errors
/// Numbers that JSON does not have: NaN and infinities.
pub(crate) fn write(names: &[String], outputs: &[Tensor]) -> Result<Vec<u8>> {
    for (name, output) in names.iter().zip(outputs).filter(|(_, output)| output.dtype().is_float()) {
        if output.to_f64s().iter().any(|x| !x.is_finite()) {
            return Err(Error::new(ErrorKind::NotFinite, format!("the output `{name}` is not finite")));
        }
    }
    serde_json::to_vec(&Outputs { names, outputs })
        .map_err(|e| Error::new(ErrorKind::Internal, format!("the answer cannot be written: {e}")))
}

struct Outputs<'a> {
    names: &'a [String],
    outputs: &'a [Tensor],
}

impl Serialize for Outputs<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.names.len()))?;
        for (name, output) in self.names.iter().zip(self.outputs) {
            map.serialize_entry(name, &Output(output))?;
        }
        map.end()
    }
}

struct Output<'a>(&'a Tensor);

impl Serialize for Output<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        let Output(tensor) = self;
        match tensor.dtype() {
            DType::Bool => lists(tensor, Bool::get, serializer),
            DType::U8 => lists(tensor, |x: u8| x, serializer),
            DType::I32 => lists(tensor, |x: i32| x, serializer),
            DType::I64 => lists(tensor, |x: i64| x, serializer),
            DType::F16 => lists(tensor, |x: autobwd::tensor::f16| x.to_f32(), serializer),
            DType::BF16 => lists(tensor, |x: autobwd::tensor::bf16| x.to_f32(), serializer),
            DType::F32 => lists(tensor, |x: f32| x, serializer),
            DType::F64 => lists(tensor, |x: f64| x, serializer),
        }
    }
}

/// Writes a tensor whose elements are of type `T`.
fn lists<T: Element, J: Serialize, S: Serializer>(
    tensor: &Tensor,
    to_json: impl Fn(T) -> J + Copy,
    serializer: S,
) -> std::result::Result<S::Ok, S::Error> {
    let elements = tensor.slice::<T>().map_err(serde::ser::Error::custom)?;
    List { dims: tensor.dims(), elements, to_json }.serialize(serializer)
}

/// Elements as lists of these lengths within each other.
struct List<'a, T, F> {
    dims: &'a [usize],
    elements: &'a [T],
    to_json: F,
}

impl<T: Element, J: Serialize, F: Fn(T) -> J + Copy> Serialize for List<'_, T, F> {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        match (self.dims, self.elements) {
            ([length, inner @ ..], elements) => {
                let items: usize = inner.iter().product();
                let item = |at: usize| List {
                    dims: inner,
                    elements: elements.get(at * items..(at + 1) * items).unwrap_or_default(),
                    to_json: self.to_json,
                };
                serializer.collect_seq((0..*length).map(item))
            }
            ([], [element, ..]) => (self.to_json)(*element).serialize(serializer),
            ([], []) => serializer.serialize_unit(),
        }
    }
}
