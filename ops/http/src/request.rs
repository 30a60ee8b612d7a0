//! Requests: tensors from the nested lists of a JSON object.

use autobwd::{DType, Error, ErrorKind, Result, Tensor, tensor::Bool};
use serde_json::Value;

/// An input of the served model.
#[derive(Clone, Debug)]
pub(crate) struct Input {
    /// The name in requests.
    pub(crate) name: String,
    /// The variable of the program.
    pub(crate) variable: String,
    /// The dtype that the program declares.
    pub(crate) dtype: DType,
}

/// The tensors of a request, in the order of `inputs`.
///
/// # Errors
/// A text that is no JSON object; an input that is missing or that the model does not have; a value that is no tensor.
pub(crate) fn read(body: &[u8], inputs: &[Input]) -> Result<Vec<Tensor>> {
    let names = || inputs.iter().map(|input| format!("`{}`", input.name)).collect::<Vec<_>>().join(", ");
    let refused = |text: String| Error::new(ErrorKind::Format, text);
    let request: Value = match serde_json::from_slice(body) {
        Ok(request) => request,
        Err(e) => return Err(refused(format!("the request is no JSON: {e}"))),
    };
    let Value::Object(values) = &request else {
        return Err(refused(format!("the request needs a JSON object with {}", names())));
    };
    if let Some(unknown) = values.keys().find(|key| inputs.iter().all(|input| input.name != **key)) {
        return Err(refused(format!("the model has no input `{unknown}`; its inputs are {}", names())));
    }
    let tensors = inputs.iter().map(|Input { name, dtype, .. }| match values.get(name) {
        Some(value) => tensor(name, value, *dtype),
        None => Err(refused(format!("the request needs the input `{name}`"))),
    });
    tensors.collect()
}

/// The tensor that nested lists stand for. It has the declared dtype if its elements fit into it, and otherwise one that
/// the program refuses with its own message.
fn tensor(name: &str, value: &Value, declared: DType) -> Result<Tensor> {
    let refuse = |kind, text: String| Err(Error::new(kind, format!("`{name}` {text}")));
    let (dims, mut elements) = (dims(value), vec![]);
    if !flatten(value, &dims, &mut elements) {
        return refuse(ErrorKind::Shape, "needs lists of equal lengths".into());
    }
    if declared.is_float()
        && let Some(numbers) = all(&elements, Value::as_f64)
    {
        let tensor = Tensor::from_f64s(declared, &dims, &numbers)?;
        return match tensor.to_f64s().iter().position(|x| !x.is_finite()) {
            Some(at) => {
                refuse(ErrorKind::NotFinite, format!("needs numbers of {declared}, not {}", numbers[at]))
            }
            None => Ok(tensor),
        };
    }
    if let Some(integers) = all(&elements, Value::as_i64) {
        return match declared {
            DType::I32 => fitting(&dims, integers, |x| i32::try_from(*x).ok()),
            DType::U8 => fitting(&dims, integers, |x| u8::try_from(*x).ok()),
            _ => Tensor::from_vec(dims, integers),
        };
    }
    if let Some(truths) = all(&elements, Value::as_bool) {
        return Tensor::from_vec(dims, truths.into_iter().map(Bool::from).collect());
    }
    match all(&elements, Value::as_f64) {
        Some(numbers) => Tensor::from_vec(dims, numbers),
        None => refuse(ErrorKind::DType, format!("needs lists of {declared}")),
    }
}

/// The lengths of the first list of each depth.
fn dims(value: &Value) -> Vec<usize> {
    let (mut dims, mut first) = (vec![], Some(value));
    while let Some(Value::Array(items)) = first {
        dims.push(items.len());
        first = items.first();
    }
    dims
}

/// Collects the elements; returns whether the lists have these lengths.
fn flatten<'a>(value: &'a Value, dims: &[usize], elements: &mut Vec<&'a Value>) -> bool {
    match (value, dims) {
        (Value::Array(items), [length, inner @ ..]) if items.len() == *length => {
            items.iter().all(|item| flatten(item, inner, elements))
        }
        (Value::Array(_), _) | (_, [_, ..]) => false,
        (element, []) => {
            elements.push(element);
            true
        }
    }
}

/// All elements as this type, or `None`.
fn all<T>(elements: &[&Value], read: impl Fn(&Value) -> Option<T>) -> Option<Vec<T>> {
    elements.iter().map(|element| read(element)).collect()
}

/// A tensor of the narrower integers, or one of int64 if some do not fit.
fn fitting<T: autobwd::tensor::Element>(
    dims: &[usize],
    integers: Vec<i64>,
    narrow: impl Fn(&i64) -> Option<T>,
) -> Result<Tensor> {
    match integers.iter().map(narrow).collect::<Option<Vec<T>>>() {
        Some(narrowed) => Tensor::from_vec(dims, narrowed),
        None => Tensor::from_vec(dims, integers),
    }
}
