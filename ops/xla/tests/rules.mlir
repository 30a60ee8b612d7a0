// Rules: argsort
    // argsort
    %1 = stablehlo.iota dim = 1 : tensor<2x4xi64>
    %7:2 = "stablehlo.sort"(%v0, %1) <{dimension = 1 : i64, is_stable = true}> ({
    ^bb0(%2: tensor<i32>, %3: tensor<i32>, %4: tensor<i64>, %5: tensor<i64>):
      %6 = stablehlo.compare GT, %2, %3, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %6 : tensor<i1>
    }) : (tensor<2x4xi32>, tensor<2x4xi64>) -> (tensor<2x4xi32>, tensor<2x4xi64>)
    return %7#0, %7#1 : tensor<2x4xi32>, tensor<2x4xi64>

// Rules: assign_value
    // assign_value
    %v0 = stablehlo.constant dense<[-1, 2]> : tensor<2xi32>
    return %v0 : tensor<2xi32>

// Rules: bitwise_and
    // bitwise_and
    %v2 = stablehlo.and %v0, %v1 : tensor<4xi1>
    return %v2 : tensor<4xi1>

// Rules: bitwise_not
    // bitwise_not
    %v1 = stablehlo.not %v0 : tensor<ui8>
    return %v1 : tensor<ui8>

// Rules: bitwise_or
    // bitwise_or
    %v2 = stablehlo.or %v0, %v1 : tensor<4xi1>
    return %v2 : tensor<4xi1>

// Rules: bitwise_xor
    // bitwise_xor
    %v2 = stablehlo.xor %v0, %v1 : tensor<4xi1>
    return %v2 : tensor<4xi1>

// Rules: c_allgather
    // c_allgather
    return %v0 : tensor<4xi64>

// Rules: c_allreduce_sum
    // c_allreduce_sum
    return %v0 : tensor<f32>

// Rules: c_broadcast
    // c_broadcast
    return %v0 : tensor<i64>

// Rules: c_reduce_sum
    // c_reduce_sum
    return %v0 : tensor<3xi64>

// Rules: c_reducescatter
    // c_reducescatter
    return %v0 : tensor<4xi64>

// Rules: concat_grad
    // concat
    // fill_any_like
    //   of it: fill_constant
    %v1.GRAD_0 = stablehlo.constant dense<0x3F800000> : tensor<5xf32>
    // concat_grad
    return %v1.GRAD_0 : tensor<5xf32>

// Rules: concat
    // concat
    return %v0 : tensor<5xf32>

// Rules: conv2d_grad
    // conv2d
    %v2 = stablehlo.constant dense<0x00000000> : tensor<0x4x4x4xf32>
    // fill_any_like
    //   of it: fill_constant
    %v2.GRAD_0 = stablehlo.constant dense<0x3F800000> : tensor<0x4x4x4xf32>
    // conv2d_grad
    %v0.GRAD = stablehlo.constant dense<0x00000000> : tensor<0x3x5x4xf32>
    %v1.GRAD = stablehlo.constant dense<0x00000000> : tensor<4x3x2x1xf32>
    return %v0.GRAD, %v1.GRAD : tensor<0x3x5x4xf32>, tensor<4x3x2x1xf32>

// Rules: conv2d
    // conv2d
    %v2 = stablehlo.constant dense<0x00000000> : tensor<0x4x4x4xf32>
    return %v2 : tensor<0x4x4x4xf32>

// Rules: conv2d_transpose
    // conv2d_transpose
    %v2 = stablehlo.constant dense<0x00000000> : tensor<0x3x6x7xf32>
    return %v2 : tensor<0x3x6x7xf32>

// Rules: conv3d
    // conv3d
    %v2 = stablehlo.constant dense<0x00000000> : tensor<0x2x2x2x2xf32>
    return %v2 : tensor<0x2x2x2x2xf32>

// Rules: cumsum
    // cumsum
    return %v0 : tensor<0x3xf32>

// Rules: elementwise_mod
    // elementwise_mod
    %2 = stablehlo.remainder %v0, %v1 : tensor<1xi32>
    %3 = stablehlo.constant dense<0> : tensor<1xi32>
    %4 = stablehlo.compare NE, %2, %3, SIGNED : (tensor<1xi32>, tensor<1xi32>) -> tensor<1xi1>
    %5 = stablehlo.compare LT, %2, %3, SIGNED : (tensor<1xi32>, tensor<1xi32>) -> tensor<1xi1>
    %6 = stablehlo.compare LT, %v1, %3, SIGNED : (tensor<1xi32>, tensor<1xi32>) -> tensor<1xi1>
    %7 = stablehlo.xor %5, %6 : tensor<1xi1>
    %8 = stablehlo.and %4, %7 : tensor<1xi1>
    %9 = stablehlo.add %2, %v1 : tensor<1xi32>
    %v2 = stablehlo.select %8, %9, %2 : tensor<1xi1>, tensor<1xi32>
    return %v2 : tensor<1xi32>

// Rules: expand_v2
    // expand_v2
    return %v1 : tensor<f32>

// Rules: conv3d_grad
    // fill_constant
    %a.value.of.the.composition = stablehlo.constant dense<0x00000000> : tensor<0x1x2x4x6xf32>
    // conv3d_grad
    %v2 = stablehlo.constant dense<0x00000000> : tensor<0x1x2x4x6xf32>
    return %v2 : tensor<0x1x2x4x6xf32>

// Rules: noise_like
    // fill_constant
    %a.value.of.the.composition = stablehlo.constant dense<1> : tensor<1xi64>
    // fill_any_like
    //   of it: fill_constant
    %a.value.of.the.composition_0 = stablehlo.constant dense<0x0000000000000000> : tensor<0x2xf64>
    // noise_like
    %3 = stablehlo.reshape %a.value.of.the.composition : (tensor<1xi64>) -> tensor<i64>
    %4 = stablehlo.bitcast_convert %3 : (tensor<i64>) -> tensor<ui64>
    %5 = stablehlo.constant dense<0x0000000000000000> : tensor<0xf64>
    %a.value.of.the.composition_1 = stablehlo.reshape %5 : (tensor<0xf64>) -> tensor<0x2xf64>
    // cast
    %a.value.of.the.composition_2 = stablehlo.convert %v0 : (tensor<0x2xf32>) -> tensor<0x2xf64>
    // less_than
    %8 = stablehlo.constant dense<0x0000000000000000> : tensor<0x2xf64>
    %9 = stablehlo.compare GT, %a.value.of.the.composition_2, %a.value.of.the.composition_1, FLOAT : (tensor<0x2xf64>, tensor<0x2xf64>) -> tensor<0x2xi1>
    %10 = stablehlo.constant dense<0x3FF0000000000000> : tensor<0x2xf64>
    %11 = stablehlo.select %9, %10, %8 : tensor<0x2xi1>, tensor<0x2xf64>
    %12 = stablehlo.constant dense<0x0000000000000000> : tensor<0x2xf64>
    %a.value.of.the.composition_3 = stablehlo.compare NE, %11, %12, FLOAT : (tensor<0x2xf64>, tensor<0x2xf64>) -> tensor<0x2xi1>
    // cast
    %v1 = stablehlo.convert %a.value.of.the.composition_3 : (tensor<0x2xi1>) -> tensor<0x2xf32>
    return %v1 : tensor<0x2xf32>

// Rules: fill_constant
    // fill_constant
    %v1 = stablehlo.constant dense<true> : tensor<i1>
    return %v1 : tensor<i1>

// Rules: gather
    // gather
    %v2 = stablehlo.constant dense<0x00000000> : tensor<0x2xf32>
    return %v2 : tensor<0x2xf32>

// Rules: gather_nd
    // gather_nd
    %2 = stablehlo.constant dense<2> : tensor<1xi64>
    %3 = stablehlo.broadcast_in_dim %2, dims = [1] : (tensor<1xi64>) -> tensor<3x1xi64>
    %4 = stablehlo.constant dense<0> : tensor<3x1xi64>
    %5 = stablehlo.compare LT, %v1, %4, SIGNED : (tensor<3x1xi64>, tensor<3x1xi64>) -> tensor<3x1xi1>
    %6 = stablehlo.add %v1, %3 : tensor<3x1xi64>
    %7 = stablehlo.select %5, %6, %v1 : tensor<3x1xi1>, tensor<3x1xi64>
    %v2 = stablehlo.constant dense<0x00000000> : tensor<3x0xf32>
    return %v2 : tensor<3x0xf32>

// Rules: matmul_v2
    // matmul_v2
    %v2 = stablehlo.dot_general %v0, %v1, contracting_dims = [1] x [0] : (tensor<2x3xf32>, tensor<3x4xf32>) -> tensor<2x4xf32>
    return %v2 : tensor<2x4xf32>

// Rules: pad
    // pad
    %1 = stablehlo.constant dense<0x3F800000> : tensor<f32>
    return %v0 : tensor<f32>

// Rules: pool2d_grad
    // pool2d
    %v1 = stablehlo.constant dense<0x00000000> : tensor<0x3x4x2xf32>
    // fill_any_like
    //   of it: fill_constant
    %v1.GRAD_0 = stablehlo.constant dense<0x3F800000> : tensor<0x3x4x2xf32>
    // pool2d_grad
    %v0.GRAD = stablehlo.constant dense<0x00000000> : tensor<0x3x5x4xf32>
    return %v0.GRAD : tensor<0x3x5x4xf32>

// Rules: pool2d
    // pool2d
    %v1 = stablehlo.constant dense<0x00000000> : tensor<0x3x4x2xf32>
    return %v1 : tensor<0x3x4x2xf32>

// Rules: range
    // range
    %3 = stablehlo.iota dim = 0 : tensor<3xi64>
    %4 = stablehlo.constant dense<2> : tensor<3xi64>
    %5 = stablehlo.multiply %3, %4 : tensor<3xi64>
    %6 = stablehlo.constant dense<0> : tensor<3xi64>
    %v3 = stablehlo.add %5, %6 : tensor<3xi64>
    return %v3 : tensor<3xi64>

// Rules: reduce_amax
    // reduce_amax
    return %v0 : tensor<f32>

// Rules: reduce_amin
    // reduce_amin
    return %v0 : tensor<f32>

// Rules: reduce_max
    // reduce_max
    return %v0 : tensor<f32>

// Rules: reduce_min
    // reduce_min
    return %v0 : tensor<f32>

// Rules: reduce_prod
    // reduce_prod
    return %v0 : tensor<f32>

// Rules: reduce_sum
    // reduce_sum
    return %v0 : tensor<f32>

// Rules: reshape2
    // reshape2
    %v1 = stablehlo.reshape %v0 : (tensor<1x1xf32>) -> tensor<f32>
    return %v1 : tensor<f32>

// Rules: scatter
    // scatter
    return %v0 : tensor<4x3xf32>

// Rules: scatter_nd_add
    // scatter_nd_add
    %3 = stablehlo.constant dense<4> : tensor<1xi64>
    %4 = stablehlo.broadcast_in_dim %3, dims = [1] : (tensor<1xi64>) -> tensor<5x1xi64>
    %5 = stablehlo.constant dense<0> : tensor<5x1xi64>
    %6 = stablehlo.compare LT, %v1, %5, SIGNED : (tensor<5x1xi64>, tensor<5x1xi64>) -> tensor<5x1xi1>
    %7 = stablehlo.add %v1, %4 : tensor<5x1xi64>
    %8 = stablehlo.select %6, %7, %v1 : tensor<5x1xi1>, tensor<5x1xi64>
    %v3 = "stablehlo.scatter"(%v0, %8, %v2) <{scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [1], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>, indices_are_sorted = false, unique_indices = false}> ({
    ^bb0(%9: tensor<f32>, %10: tensor<f32>):
      %11 = stablehlo.add %9, %10 : tensor<f32>
      stablehlo.return %11 : tensor<f32>
    }) : (tensor<4x3xf32>, tensor<5x1xi64>, tensor<5x3xf32>) -> tensor<4x3xf32>
    return %v3 : tensor<4x3xf32>

// Rules: seed
    // seed
    %v0 = stablehlo.constant dense<0> : tensor<1xi32>
    return %v0 : tensor<1xi32>

// Rules: shape
    // shape
    %v1 = stablehlo.constant dense<0> : tensor<0xi32>
    return %v1 : tensor<0xi32>

// Rules: slice_grad
    // slice
    // fill_any_like
    //   of it: fill_constant
    %v1.GRAD_0 = stablehlo.constant dense<0x3F800000> : tensor<f32>
    // slice_grad
    %2 = stablehlo.constant dense<0x00000000> : tensor<f32>
    return %v1.GRAD_0 : tensor<f32>

// Rules: slice
    // slice
    return %v0 : tensor<f32>

// Rules: split
    // split
    %v2 = stablehlo.slice %v0 [5:5] : (tensor<5xf32>) -> tensor<0xf32>
    return %v0, %v2 : tensor<5xf32>, tensor<0xf32>

// Rules: squeeze2
    // squeeze2
    return %v0 : tensor<f32>

// Rules: strided_slice_grad
    // strided_slice
    %v1 = stablehlo.reverse %v0, dims = [1] : tensor<4x5xf32>
    // fill_any_like
    //   of it: fill_constant
    %v1.GRAD_0 = stablehlo.constant dense<0x3F800000> : tensor<4x5xf32>
    // strided_slice_grad
    %v0.GRAD = stablehlo.reverse %v1.GRAD_0, dims = [1] : tensor<4x5xf32>
    %4 = stablehlo.constant dense<0x00000000> : tensor<f32>
    return %v0.GRAD : tensor<4x5xf32>

// Rules: strided_slice
    // strided_slice
    %v1 = stablehlo.reverse %v0, dims = [1] : tensor<4x5xf32>
    return %v1 : tensor<4x5xf32>

// Rules: take_along_axis_grad
    // take_along_axis
    // fill_any_like
    //   of it: fill_constant
    %v2.GRAD_0 = stablehlo.constant dense<0x3F800000> : tensor<f32>
    // take_along_axis_grad
    %3 = stablehlo.constant dense<0x00000000> : tensor<f32>
    %v0.GRAD = stablehlo.add %3, %v2.GRAD_0 : tensor<f32>
    return %v0.GRAD : tensor<f32>

// Rules: take_along_axis
    // take_along_axis
    return %v0 : tensor<f32>

// Rules: transpose2
    // transpose2
    return %v0 : tensor<f32>

// Rules: unsqueeze2
    // unsqueeze2
    return %v0 : tensor<3xi64>

