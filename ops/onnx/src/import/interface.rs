//! Inputs and outputs of the model.

use std::{collections::BTreeSet, rc::Rc};

use autobwd::{BlockId, Dims, Error, ErrorKind, Expr, Result, VarDesc, emit, tensor::Dim};
use autobwd_ops::shape::Assign;

use super::{
    Importer,
    options::{dimension_text, fits},
    value::ImportedValue,
    variable_name,
};
use crate::{
    elements::ElementType,
    proto::{ValueInfoProto, tensor_shape_proto::dimension, type_proto},
};

impl Importer<'_> {
    /// Declares an input of the model without initializer; those that are given are constants.
    pub(super) fn graph_input(&mut self, input: &ValueInfoProto, feeds: &mut Vec<String>) {
        let (name, place) = (input.name(), format!("input `{}`", input.name()));
        let declared = self.tensor_type(input);
        let Some((element, dims)) = self.obstacles.note(&*place, declared) else {
            return self.bind(name, None);
        };
        if let Some(given) = self.options.values.get(name) {
            let value = self.given_value(name, element, &dims, given);
            let value = self.obstacles.note(place, value);
            return self.bind(name, value);
        }
        let Some(dtype) = self.obstacles.note(&*place, self.dtype(element)) else {
            return self.bind(name, None);
        };
        let expr = self.net.input_with_dims(&variable_name(name), dtype, dims);
        if self.options.float64 && dtype.is_float() && expr.check().is_ok() {
            // To be differentiated by.
            self.net.declare_in(BlockId::ROOT, &expr, VarDesc::new(dtype, expr.dims()));
        }
        let value = self.obstacles.note(place, expr.check().cloned()).map(|expr| ImportedValue {
            sources: Rc::new(BTreeSet::from([name.to_string()])),
            ..ImportedValue::computed(name, element, expr)
        });
        self.bind(name, value);
        self.feeds.insert(self.var(&variable_name(name)));
        feeds.push(variable_name(name));
    }

    /// The type and the dimensions of a tensor, with their names.
    pub(super) fn tensor_type(&self, info: &ValueInfoProto) -> Result<(ElementType, Dims)> {
        let refuse = |text: String| Error::new(ErrorKind::Format, text);
        let tensor = match info.r#type.as_ref().and_then(|ty| ty.value.as_ref()) {
            Some(type_proto::Value::TensorType(tensor)) => tensor,
            Some(type_proto::Value::SequenceType(_)) => {
                return Err(refuse("inputs of type sequence are not supported".into()));
            }
            Some(type_proto::Value::OptionalType(_)) => {
                return Err(refuse("inputs of type optional are not supported".into()));
            }
            _ => return Err(refuse("inputs of other types than tensor are not supported".into())),
        };
        let code = tensor.elem_type.unwrap_or_default();
        let element = ElementType::from_code(code);
        let element = element.ok_or_else(|| refuse(format!("{code} is not a type of elements")))?;
        self.dtype(element)?;
        let Some(shape) = &tensor.shape else {
            return Err(refuse(format!("`{}` has no shape", info.name())));
        };
        let given = self.options.shapes.get(info.name());
        if let Some(given) = given.filter(|given| !fits(given, &shape.dim)) {
            let declared = shape.dim.iter().map(dimension_text).collect::<Vec<_>>().join(", ");
            let text = format!("`{}` has shape [{declared}], not {given:?}", info.name());
            return Err(refuse(text));
        }
        let dims = shape.dim.iter().enumerate().map(|(i, dim)| match &dim.value {
            Some(dimension::Value::DimValue(n)) if *n >= 0 => Dim::from(*n as usize),
            _ if given.is_some() => {
                given.and_then(|given| given.get(i)).map_or(Dim::UNKNOWN, |n| Dim::from(*n))
            }
            Some(dimension::Value::DimParam(symbol)) => {
                self.options.dims.get(symbol).map_or_else(|| Dim::named(symbol), |n| Dim::from(*n))
            }
            _ => Dim::UNKNOWN,
        });
        Ok((element, dims.collect()))
    }

    /// Writes an output of the model to a variable of its name.
    pub(super) fn graph_output(&mut self, name: &str, fetches: &mut Vec<String>) {
        let place = format!("output `{name}`");
        let value = match self.lookup(name) {
            None => return self.obstacles.add(place, format!("no node computes `{name}`")),
            Some(None) => return,
            Some(Some(value)) => value,
        };
        if self.net.program().is_err() {
            // A node has failed, and so would everything after it.
            return;
        }
        let variable = variable_name(name);
        let unnamed = ImportedValue { name: "".into(), ..value };
        let expr = match self.value_expr(&unnamed) {
            Ok(expr) => expr,
            Err(e) => return self.obstacles.add(place, e.to_string()),
        };
        let changed = self.state.get(name).map(|changed| variable_name(changed));
        if let Some(changed) = changed {
            let target = self.net.existing(self.var(&changed));
            self.obstacles.note(place, assign(&expr, &target));
            return;
        }
        fetches.push(variable.clone());
        // The value itself has the name, or it is an input.
        if expr.name() == variable || self.is_named(&expr, &variable) {
            return;
        }
        let var = self.var(&variable);
        let target = self.net.existing(var);
        let meta = expr.meta();
        let desc = VarDesc { stop_gradient: !meta.dtype.is_float(), ..VarDesc::new(meta.dtype, meta.dims) };
        self.net.declare_in(BlockId::ROOT, &target, desc);
        self.obstacles.note(place, assign(&expr, &target));
    }
}

/// Writes a value to an existing variable.
fn assign(value: &Expr, target: &Expr) -> Result<()> {
    emit(Assign { x: value.into(), out: target.into() }).out.check().map(drop)
}
