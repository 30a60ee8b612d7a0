//! Models as messages, built by tests.

#![allow(dead_code, unreachable_pub)]

#[path = "../../src/proto/mod.rs"]
pub mod proto;

use autobwd::{DType, Tensor};
use prost::Message;
use proto::{
    AttributeProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, TensorProto, TensorShapeProto,
    TypeProto, ValueInfoProto, attribute_proto::AttributeType, tensor_proto::DataType, tensor_shape_proto,
    type_proto,
};

/// A tensor with its elements as bytes.
pub fn tensor(name: &str, tensor: &Tensor) -> TensorProto {
    let code = match tensor.dtype() {
        DType::F16 => DataType::Float16,
        DType::BF16 => DataType::Bfloat16,
        DType::F32 => DataType::Float,
        DType::F64 => DataType::Double,
        DType::I32 => DataType::Int32,
        DType::I64 => DataType::Int64,
        DType::U8 => DataType::Uint8,
        DType::Bool => DataType::Bool,
    };
    TensorProto {
        name: Some(name.into()),
        dims: tensor.dims().iter().map(|dim| *dim as i64).collect(),
        data_type: Some(code as i32),
        raw_data: Some(tensor.bytes().to_vec().into()),
        ..TensorProto::default()
    }
}

pub fn floats(name: &str, dims: &[usize], elements: &[f32]) -> TensorProto {
    tensor(name, &Tensor::from_vec(dims, elements.to_vec()).unwrap())
}

pub fn ints(name: &str, elements: &[i64]) -> TensorProto {
    tensor(name, &Tensor::from_vec([elements.len()], elements.to_vec()).unwrap())
}

pub fn node(op: &str, inputs: &[&str], outputs: &[&str]) -> NodeProto {
    NodeProto {
        op_type: Some(op.into()),
        input: inputs.iter().map(|name| name.to_string()).collect(),
        output: outputs.iter().map(|name| name.to_string()).collect(),
        ..NodeProto::default()
    }
}

impl NodeProto {
    fn with(mut self, name: &str, ty: AttributeType, attribute: AttributeProto) -> NodeProto {
        let (name, r#type) = (Some(name.into()), Some(ty as i32));
        self.attribute.push(AttributeProto { name, r#type, ..attribute });
        self
    }

    pub fn int(self, name: &str, value: i64) -> NodeProto {
        self.with(name, AttributeType::Int, AttributeProto { i: Some(value), ..AttributeProto::default() })
    }

    pub fn ints(self, name: &str, values: &[i64]) -> NodeProto {
        let attribute = AttributeProto { ints: values.to_vec(), ..AttributeProto::default() };
        self.with(name, AttributeType::Ints, attribute)
    }

    pub fn text(self, name: &str, value: &str) -> NodeProto {
        let attribute = AttributeProto { s: Some(value.into()), ..AttributeProto::default() };
        self.with(name, AttributeType::String, attribute)
    }

    pub fn tensor(self, name: &str, value: TensorProto) -> NodeProto {
        self.with(name, AttributeType::Tensor, AttributeProto { t: Some(value), ..AttributeProto::default() })
    }

    pub fn graph(self, name: &str, graph: GraphProto) -> NodeProto {
        self.with(name, AttributeType::Graph, AttributeProto { g: Some(graph), ..AttributeProto::default() })
    }
}

/// A constant of floating point numbers.
pub fn constant(name: &str, dims: &[usize], elements: &[f32]) -> NodeProto {
    node("Constant", &[], &[name]).tensor("value", floats("", dims, elements))
}

/// A value of float32 with these dimensions, of a code of `TensorProto.DataType` otherwise.
pub fn value(name: &str, dims: &[i64]) -> ValueInfoProto {
    typed_value(name, 1, dims)
}

pub fn typed_value(name: &str, code: i32, dims: &[i64]) -> ValueInfoProto {
    use tensor_shape_proto::{Dimension, dimension};
    let dim = |dim: &i64| Dimension { value: Some(dimension::Value::DimValue(*dim)), ..Dimension::default() };
    let shape = TensorShapeProto { dim: dims.iter().map(dim).collect() };
    let tensor = type_proto::Tensor { elem_type: Some(code), shape: Some(shape) };
    let r#type = TypeProto { value: Some(type_proto::Value::TensorType(tensor)), ..TypeProto::default() };
    ValueInfoProto { name: Some(name.into()), r#type: Some(r#type), ..ValueInfoProto::default() }
}

pub fn graph(
    inputs: &[ValueInfoProto],
    outputs: &[&str],
    nodes: Vec<NodeProto>,
    initializers: Vec<TensorProto>,
) -> GraphProto {
    GraphProto {
        name: Some("graph".into()),
        input: inputs.to_vec(),
        output: outputs
            .iter()
            .map(|name| ValueInfoProto { name: Some(name.to_string()), ..ValueInfoProto::default() })
            .collect(),
        node: nodes,
        initializer: initializers,
        ..GraphProto::default()
    }
}

/// The bytes of a model of operator set 17.
pub fn model(graph: GraphProto) -> Vec<u8> {
    let opset = OperatorSetIdProto { version: Some(17), ..OperatorSetIdProto::default() };
    let model = ModelProto {
        ir_version: Some(8),
        opset_import: vec![opset],
        graph: Some(graph),
        ..ModelProto::default()
    };
    model.encode_to_vec()
}
