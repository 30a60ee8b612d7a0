//! What is known when a graph is imported: constants, nodes of constants, attributes of functions.
//!
//! A node of constants is evaluated when the model is loaded, so computations of shapes vanish. Nodes that read
//! parameters are not folded.

use std::rc::Rc;

use autobwd::{
    __private::internals::*, Builder, DType, Error, ErrorKind, Expr, Feed, Result, Scope, Tensor,
    tensor::Bool,
};
use autobwd_ops::{
    Math,
    fill::{AssignValue, FillConstant},
};

use super::{
    Importer,
    node::{FoldedProgram, NodeContext},
    rules::{ImportRule, finish},
    value::{ImportedValue, InitialElements, Known, ParameterVariables, ValueContent},
    variable_name,
};
use crate::{
    elements::ElementType,
    proto::{AttributeProto, FunctionProto, NodeProto, TensorProto},
    tensors::{self, OnnxTensor},
};

/// The most bytes that all variables of a node of constants may have.
const FOLDED: usize = 1 << 22;

/// The most elements of an initializer of floating point numbers that may decide about shapes, or is folded in inference:
/// larger ones are weights of layers.
pub(super) const FOLDED_FLOATS: usize = 64;

/// The most elements of a constant that an operator of the program writes; the program keeps larger ones.
const WRITTEN: usize = 4096;

impl Importer<'_> {
    /// The outputs of a node of parameters and constants while these have the values of the file; empty for other nodes
    /// and for large values.
    pub(super) fn initial_values(
        &mut self,
        rule: ImportRule,
        proto: &NodeProto,
        inputs: &[Option<ImportedValue>],
        version: i64,
    ) -> Vec<InitialElements> {
        let small = |value: &ImportedValue| {
            value.tensor().is_some_and(|x| !x.dtype().is_float() || x.numel() <= FOLDED_FLOATS)
        };
        if !rule.folds || inputs.is_empty() || !inputs.iter().flatten().all(small) {
            return vec![];
        }
        let values = self.fold(rule, proto, inputs, version).unwrap_or_default();
        let parameters = inputs.iter().flatten().flat_map(|value| (*value.parameters()).clone());
        let parameters = Rc::new(parameters.collect::<ParameterVariables>());
        let tensors = values.iter().map_while(|value| value.tensor().cloned());
        tensors.map(|tensor| InitialElements { tensor, parameters: parameters.clone() }).collect()
    }

    /// The elements of a value, for a rule that needs them as numbers: parameters that decide about them are frozen.
    pub(super) fn number(&self, value: &ImportedValue) -> Option<Rc<Tensor>> {
        let tensor = value.tensor()?.clone();
        self.fixed.borrow_mut().extend((*value.parameters()).clone());
        Some(tensor)
    }

    /// The outputs of a node of constants, unless its rule fails or they are too large.
    pub(super) fn fold(
        &mut self,
        rule: ImportRule,
        proto: &NodeProto,
        inputs: &[Option<ImportedValue>],
        version: i64,
    ) -> Option<Vec<ImportedValue>> {
        let mut node = NodeContext::new(self, proto, inputs.to_vec(), version);
        node.scratch = Some(FoldedProgram::default());
        let outputs = (rule.import)(&mut node).ok()?;
        let values = finish(&mut node, rule, outputs).ok()?;
        let scratch = node.scratch.take()?;
        scratch.evaluate(self, values).ok()
    }

    /// A constant as an expression of the current block.
    pub(super) fn materialize(&mut self, name: &str, known: &Known) -> Result<Expr> {
        if let Some(expr) = &*known.expr.borrow() {
            return Ok(expr.clone());
        }
        let net = self.net.clone();
        let written = if self.options.inference { FOLDED_FLOATS } else { WRITTEN };
        let kept =
            known.parameter.is_some() || known.tensor.numel() > written || known.tensor.dtype() == DType::U8;
        let expr = match kept {
            false => constant(&net, &known.tensor)?,
            true => self.keep(&net, name, known)?,
        };
        expr.check()?;
        if kept || net.block() == autobwd::BlockId::ROOT {
            *known.expr.borrow_mut() = Some(expr.clone());
        }
        Ok(expr)
    }

    /// A constant as a value that the program keeps and does not train.
    pub(super) fn materialize_statistic(&mut self, name: &str, known: &Known) -> Result<Expr> {
        if let Some(expr) = &*known.statistic.borrow() {
            return Ok(expr.clone());
        }
        let name = known.parameter.as_deref().unwrap_or(name);
        let kept = Known { parameter: None, ..known.clone() };
        let net = self.net.clone();
        let expr = self.keep(&net, name, &kept)?;
        *known.statistic.borrow_mut() = Some(expr.clone());
        Ok(expr)
    }

    /// A variable that the program keeps, with its value in the scope.
    pub(super) fn keep(&mut self, net: &Builder, name: &str, known: &Known) -> Result<Expr> {
        let name = known.parameter.as_deref().unwrap_or(name);
        let mut name = variable_name(if name.is_empty() { "constant" } else { name });
        let program = net.program()?;
        if program.find(&name).is_some_and(|var| program.root().vars.contains_key(&var)) {
            name = net.unique(&name);
        }
        let (dtype, dims) = (known.tensor.dtype(), known.tensor.dims());
        let expr = match known.parameter.is_some() {
            true => net.parameter(&name, dtype, dims, Expr::clone),
            false => net.persistable(&name, dtype, dims, Expr::clone),
        };
        self.kept.push((name, known.tensor.clone()));
        Ok(expr)
    }

    /// A tensor of the file.
    pub(super) fn read_tensor(&self, message: &TensorProto) -> Result<OnnxTensor> {
        self.converted(tensors::read(message, self.external)?)
    }

    /// A tensor that was read, in the precision that is asked for.
    pub(super) fn converted(&self, read: OnnxTensor) -> Result<OnnxTensor> {
        Ok(OnnxTensor { tensor: self.in_precision(read.tensor)?, ..read })
    }

    /// The tensor in the precision that is asked for.
    pub(super) fn in_precision(&self, tensor: Tensor) -> Result<Tensor> {
        match self.options.float64 && tensor.dtype() == DType::F32 {
            true => Tensor::from_vec(tensor.dims(), tensor.to_f64s()),
            false => Ok(tensor),
        }
    }

    /// The dtype that holds elements of a type.
    pub(super) fn dtype(&self, element: ElementType) -> Result<DType> {
        match element.dtype() {
            Some(DType::F32) if self.options.float64 => Ok(DType::F64),
            Some(dtype) => Ok(dtype),
            None => Err(Error::new(ErrorKind::DType, format!("dtype {} is not supported", element.name()))),
        }
    }

    /// The type of elements of a dtype.
    pub(super) fn element(&self, dtype: DType) -> ElementType {
        match dtype {
            DType::F64 if self.options.float64 => ElementType::F32,
            dtype => ElementType::of(dtype),
        }
    }
}

impl FoldedProgram {
    /// Runs the program apart, unless its variables are large.
    fn evaluate(self, importer: &mut Importer<'_>, values: Vec<ImportedValue>) -> Result<Vec<ImportedValue>> {
        let program = self.net.program()?;
        let too_large = || Error::new(ErrorKind::Shape, "a constant is too large to be folded");
        let mut total = 0_usize;
        for var in program.root().vars.values() {
            let bytes = var.meta().bytes().ok_or_else(too_large)?;
            total = total.checked_add(bytes).filter(|total| *total <= FOLDED).ok_or_else(too_large)?;
        }
        let computed = values.iter().filter_map(|value| match &value.content {
            ValueContent::Computed(expr) => Some(expr.name()),
            _ => None,
        });
        let names: Vec<String> = computed.collect();
        let feeds: Vec<(&str, &dyn Feed)> =
            self.feeds.iter().map(|(name, tensor)| (name.as_str(), &**tensor as &dyn Feed)).collect();
        let fetches: Vec<&str> = names.iter().map(String::as_str).collect();
        let fetched = importer.executor.run(&program, &mut Scope::new(), &feeds, &fetches)?;
        let mut fetched = fetched.into_iter();
        let known = |value: ImportedValue| match &value.content {
            ValueContent::Computed(_) => {
                Some(ImportedValue::known(&value.name, value.element, fetched.next()?, false))
            }
            _ => Some(value),
        };
        values.into_iter().map(known).collect::<Option<_>>().ok_or_else(|| Error::internal("too few values"))
    }
}

/// An operator that writes a constant.
pub(super) fn assign_value<V>(tensor: &Tensor, shape: Vec<i32>, out: V) -> Result<AssignValue<V>> {
    let mut op = AssignValue {
        out,
        shape,
        dtype: tensor.dtype(),
        bool_values: vec![],
        fp32_values: vec![],
        int32_values: vec![],
        int64_values: vec![],
        fp64_values: vec![],
    };
    match tensor.dtype() {
        DType::Bool => op.bool_values = tensor.slice::<Bool>()?.iter().map(|x| x.get().into()).collect(),
        DType::I32 => op.int32_values = tensor.slice()?.to_vec(),
        DType::I64 => op.int64_values = tensor.slice()?.to_vec(),
        DType::F16 | DType::BF16 | DType::F32 => {
            op.fp32_values = tensor.to_f64s().into_iter().map(|x| x as f32).collect();
        }
        DType::F64 | DType::U8 => op.fp64_values = tensor.slice()?.to_vec(),
    }
    Ok(op)
}

/// A constant as an operator of the program.
pub(super) fn constant(net: &Builder, tensor: &Tensor) -> Result<Expr> {
    let wide = || Error::new(ErrorKind::Shape, "a constant is too large");
    let shape: Option<Vec<i32>> = tensor.dims().iter().map(|dim| i32::try_from(*dim).ok()).collect();
    let shape = shape.ok_or_else(wide)?;
    if tensor.numel() == 0 || tensor.dtype() == DType::U8 {
        let (shape, dtype) = (shape.iter().map(|dim| i64::from(*dim)).collect(), tensor.dtype());
        return Ok(net.emit(FillConstant { shape, dtype, ..FillConstant::of(autobwd::New) }).out);
    }
    if tensor.dtype().is_float() && tensor.to_f64s().iter().any(|x| x.is_nan()) {
        // Programs with NaN in attributes cannot be compared: log(−1) is NaN.
        let of = |number: fn(f64) -> f64| {
            let numbers: Vec<f64> = tensor.to_f64s().into_iter().map(number).collect();
            Tensor::from_f64s(tensor.dtype(), tensor.dims(), &numbers)
        };
        let numbers = of(|x| if x.is_nan() { 0.0 } else { x })?;
        let signs = of(|x| if x.is_nan() { -1.0 } else { 1.0 })?;
        return Ok(constant(net, &numbers)? + constant(net, &signs)?.log());
    }
    Ok(net.emit(assign_value(tensor, shape, autobwd::New)?).out)
}

/// Replaces references to attributes of a function by those of the call, or by their defaults.
pub(super) fn resolve_attributes(node: &mut NodeProto, call: &NodeProto, function: &FunctionProto) {
    let resolved = |attribute: &AttributeProto| {
        let Some(name) = attribute.ref_attr_name.as_deref().filter(|name| !name.is_empty()) else {
            return Some(attribute.clone());
        };
        let given = call.attribute.iter().chain(&function.attribute_proto);
        let value = given.clone().find(|value| value.name() == name)?;
        Some(AttributeProto { name: attribute.name.clone(), ref_attr_name: None, ..value.clone() })
    };
    node.attribute = node.attribute.iter().filter_map(resolved).collect();
    let graphs =
        node.attribute.iter_mut().flat_map(|attribute| attribute.g.iter_mut().chain(&mut attribute.graphs));
    for inner in graphs.flat_map(|graph| &mut graph.node) {
        resolve_attributes(inner, call, function);
    }
}
