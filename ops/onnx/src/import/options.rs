//! What is known of a model in advance, compared with what the model declares.

use std::collections::{BTreeSet, HashMap, HashSet};

use autobwd::{Dims, Error, ErrorKind, Meta, Result, Tensor, tensor::Dim};

use super::{Importer, value::ImportedValue};
use crate::{
    elements::ElementType,
    proto::{
        GraphProto, ValueInfoProto,
        tensor_shape_proto::{Dimension, dimension},
        type_proto,
    },
};

impl Importer<'_> {
    /// Adds the names in the options that the model does not have.
    pub(super) fn check_options(&mut self, graph: &GraphProto) {
        let inputs: HashSet<&str> = graph.input.iter().map(ValueInfoProto::name).collect();
        let given = self.options.shapes.keys().chain(self.options.values.keys());
        let unknown: BTreeSet<&String> = given.filter(|name| !inputs.contains(name.as_str())).collect();
        for name in unknown {
            self.obstacles.add("", format!("the model has no input `{name}`"));
        }
        let symbols: HashSet<&str> = graph.input.iter().flat_map(symbols).collect();
        let given: BTreeSet<&String> = self.options.dims.keys().collect();
        for name in given.into_iter().filter(|name| !symbols.contains(name.as_str())) {
            self.obstacles.add("", format!("no input of the model has a dimension `{name}`"));
        }
    }

    /// The given value of an input of that type.
    pub(super) fn given_value(
        &self,
        name: &str,
        element: ElementType,
        dims: &Dims,
        given: &Tensor,
    ) -> Result<ImportedValue> {
        let given = self.in_precision(given.clone())?;
        let declared = Meta::new(self.dtype(element)?, dims.clone());
        if !declared.agrees(&given.meta()) {
            let text = format!("its given value is {}, not {declared}", given.meta());
            return Err(Error::new(ErrorKind::Format, text));
        }
        Ok(ImportedValue::known(name, element, given, false))
    }
}

/// The declared dimensions of a tensor.
fn shape(info: &ValueInfoProto) -> Option<&[Dimension]> {
    match info.r#type.as_ref().and_then(|ty| ty.value.as_ref()) {
        Some(type_proto::Value::TensorType(tensor)) => tensor.shape.as_ref().map(|shape| &shape.dim[..]),
        _ => None,
    }
}

/// The names of the dimensions of an input.
fn symbols(input: &ValueInfoProto) -> impl Iterator<Item = &str> {
    shape(input).unwrap_or_default().iter().filter_map(|dim| match &dim.value {
        Some(dimension::Value::DimParam(symbol)) => Some(symbol.as_str()),
        _ => None,
    })
}

/// Open dimensions that a graph declares of the values that it computes, where they are polynomials of names that its
/// inputs have. Other names say nothing, and numbers may be older than a change of the inputs.
pub(super) fn declared_dims(graph: &GraphProto) -> HashMap<&str, Dims> {
    let known: HashSet<&str> = graph.input.iter().flat_map(symbols).collect();
    let dim = |dim: &Dimension| match &dim.value {
        Some(dimension::Value::DimParam(symbol)) => {
            let is_known = |dim: &Dim| dim.names().iter().all(|name| known.contains(&**name));
            let named = if known.contains(&**symbol) { Ok(Dim::named(symbol)) } else { symbol.parse() };
            named.ok().filter(|dim: &Dim| dim.is_named() && is_known(dim)).unwrap_or(Dim::UNKNOWN)
        }
        _ => Dim::UNKNOWN,
    };
    let values = graph.value_info.iter().chain(&graph.output);
    let dims = values.filter_map(|info| Some((info.name(), shape(info)?.iter().map(dim).collect::<Dims>())));
    dims.filter(|(_, dims)| dims.iter().any(|dim| dim.is_named())).collect()
}

/// Whether a shape agrees with declared dimensions.
pub(super) fn fits(shape: &[usize], declared: &[Dimension]) -> bool {
    let agrees = |(n, dim): (&usize, &Dimension)| match dim.value {
        Some(dimension::Value::DimValue(size)) => usize::try_from(size).map_or(true, |size| size == *n),
        _ => true,
    };
    shape.len() == declared.len() && shape.iter().zip(declared).all(agrees)
}

/// A dimension as the file declares it.
pub(super) fn dimension_text(dim: &Dimension) -> String {
    match &dim.value {
        Some(dimension::Value::DimValue(size)) => size.to_string(),
        Some(dimension::Value::DimParam(symbol)) => symbol.clone(),
        None => "-1".to_string(),
    }
}
