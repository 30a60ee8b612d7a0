//! What is known of a model in advance, compared with what the model declares.

use std::collections::{BTreeSet, HashSet};

use autobwd::{Dims, Error, ErrorKind, Meta, Result, Tensor};

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
        dims: &[i64],
        given: &Tensor,
    ) -> Result<ImportedValue> {
        let given = self.in_precision(given.clone())?;
        let declared = Meta::new(self.dtype(element)?, Dims::from_wire(dims)?);
        if !declared.agrees(&given.meta()) {
            let text = format!("its given value is {}, not {declared}", given.meta());
            return Err(Error::new(ErrorKind::Format, text));
        }
        Ok(ImportedValue::known(name, element, given, false))
    }
}

/// The names of the dimensions of an input.
fn symbols(input: &ValueInfoProto) -> impl Iterator<Item = &str> {
    let dims = match input.r#type.as_ref().and_then(|ty| ty.value.as_ref()) {
        Some(type_proto::Value::TensorType(tensor)) => tensor.shape.as_ref().map(|shape| &shape.dim[..]),
        _ => None,
    };
    dims.unwrap_or_default().iter().filter_map(|dim| match &dim.value {
        Some(dimension::Value::DimParam(symbol)) => Some(symbol.as_str()),
        _ => None,
    })
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
