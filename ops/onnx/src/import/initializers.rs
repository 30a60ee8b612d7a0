//! Initializers: parameters, constants and values that a step changes.
//!
//! An initializer of floating point numbers becomes a parameter where an operator reads it (`Known::parameter`). A
//! small value that is computed from parameters is also known as it is in the file (`InitialElements`), for rules that
//! need numbers; its parameters are then frozen.

use std::{
    collections::{HashMap, HashSet},
    ptr,
    rc::Rc,
};

use autobwd::DType;

use super::{
    Importer, fold,
    value::{ImportedValue, ValueContent},
};
use crate::{
    elements::ElementType,
    external::ExternalData,
    proto::{GraphProto, StringStringEntryProto, TensorProto, ValueInfoProto},
    tensors::{self, OnnxTensor},
};

/// Reads the initializers of a graph, which give their bytes up one by one, so that no two copies of all are in memory.
/// What cannot be read stays, to be reported later.
pub(super) fn take_tensors(
    graph: &mut GraphProto,
    external: &ExternalData,
) -> HashMap<*const TensorProto, OnnxTensor> {
    let mut tensors = HashMap::new();
    for message in &mut graph.initializer {
        if let Ok(tensor) = tensors::read(message, external) {
            message.raw_data = None;
            tensors.insert(ptr::from_ref(message), tensor);
        }
    }
    tensors
}

/// What PyTorch says of a value: `PARAMETER`, `BUFFER` …
const KIND: &str = "pkg.torch.export.graph_signature.InputSpec.kind";

/// The names of values that onnxscript has folded, as a list in Python.
const FOLDED_FROM: &str = "pkg.onnxscript.optimizer.folded_from";

fn property<'g>(info: &'g ValueInfoProto, key: &str) -> Option<&'g str> {
    info.metadata_props.iter().find(|pair| pair.key() == key).map(StringStringEntryProto::value)
}

/// The initializers that are no parameters in a file whose exporter says which are: buffers, and numbers of the program.
/// What is folded from a value of a module, such as a transposed weight, counts as a parameter.
pub(super) fn exported_constants(graph: &GraphProto) -> Vec<&str> {
    let says_kinds = graph.value_info.iter().any(|info| property(info, KIND).is_some());
    // Names of modules have a path; names of intermediate values have none.
    let of_module = |list: &str| list.split('\'').any(|name| name.contains('.'));
    let is_parameter = |info: &&ValueInfoProto| match property(info, KIND) {
        Some(kind) => kind == "PARAMETER",
        None => property(info, FOLDED_FROM).is_some_and(of_module),
    };
    let parameters: HashSet<&str> =
        graph.value_info.iter().filter(is_parameter).map(ValueInfoProto::name).collect();
    let names = graph.initializer.iter().map(TensorProto::name).filter(|_| says_kinds);
    names.filter(|name| !parameters.contains(name)).collect()
}

impl Importer<'_> {
    pub(super) fn initializers(&mut self, graph: &GraphProto) {
        for sparse in &graph.sparse_initializer {
            let name = sparse.values.as_ref().map(TensorProto::name).unwrap_or_default();
            self.obstacles.add(format!("initializer `{name}`"), "sparse initializers are not supported");
        }
        for message in &graph.initializer {
            let value = match self.initializers.get(&ptr::from_ref(message)) {
                Some(value) => value.clone(),
                None => self.initializer(message),
            };
            self.bind(message.name(), value);
        }
    }

    /// A tensor of floating point numbers is a parameter, the same one wherever it is read.
    fn initializer(&mut self, message: &TensorProto) -> Option<ImportedValue> {
        let tensor = match self.tensors.remove(&ptr::from_ref(message)) {
            Some(read) => self.converted(read),
            None => self.read_tensor(message),
        };
        let tensor = self.obstacles.note(format!("initializer `{}`", message.name()), tensor);
        let value = tensor.map(|OnnxTensor { element, tensor, .. }| {
            ImportedValue::known(message.name(), element, tensor, self.is_parameter(message))
        });
        let value = match self.changing.contains(message.name()) {
            true => value.and_then(|value| self.kept_value(value)),
            false => value,
        };
        self.initializers.insert(ptr::from_ref(message), value.clone());
        value
    }

    /// Whether an initializer becomes a parameter.
    pub(super) fn is_parameter(&self, message: &TensorProto) -> bool {
        let element = ElementType::from_code(message.data_type()).filter(|element| element.is_native());
        let dtype = element.and_then(|element| self.dtype(element).ok());
        let dims = message.dims.iter().map(|dim| usize::try_from(*dim).unwrap_or(0));
        let numel = dims.fold(1, usize::saturating_mul);
        let is_folded = self.options.inference && numel <= fold::FOLDED_FLOATS;
        dtype.is_some_and(DType::is_float) && !is_folded && !self.constants.contains(message.name())
    }

    /// Declares the parameters that nothing reads, so that they are kept when the model is saved.
    pub(super) fn unread_parameters(&mut self, graph: &GraphProto) {
        if self.options.inference || self.net.program().is_err() {
            return;
        }
        for message in &graph.initializer {
            let value = self.initializers.get(&ptr::from_ref(message)).cloned().flatten();
            let Some(ImportedValue { name, content: ValueContent::Known(known), .. }) = value else {
                continue;
            };
            let is_number = self.fixed.borrow().contains_key(&Rc::as_ptr(&known.expr));
            let is_read = is_number || known.statistic.borrow().is_some();
            if known.parameter.is_some() && known.tensor.numel() > 0 && !is_read {
                let expr = self.materialize(&name, &known);
                self.obstacles.note(format!("initializer `{name}`"), expr);
            }
        }
    }

    /// A constant as a variable that steps change.
    fn kept_value(&mut self, value: ImportedValue) -> Option<ImportedValue> {
        let ValueContent::Known(known) = &value.content else { return Some(value) };
        let expr = self.keep(&self.net.clone(), &value.name, known);
        let expr = self.obstacles.note(format!("initializer `{}`", value.name), expr)?;
        Some(ImportedValue::computed(&value.name, value.element, expr))
    }
}
