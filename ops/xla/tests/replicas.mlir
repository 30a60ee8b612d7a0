module @step attributes {mhlo.num_replicas = 2 : i32} {
  func.func public @main(
    %x0: tensor<2x3xf32>,
    %x1: tensor<4xf32>
  ) -> (tensor<2x3xf32>, tensor<4xf32>) {
    // c_allreduce_sum
    %5:2 = "stablehlo.all_reduce"(%x0, %x1) <{replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>}> ({
    ^bb0(%2: tensor<f32>, %3: tensor<f32>):
      %4 = stablehlo.add %2, %3 : tensor<f32>
      stablehlo.return %4 : tensor<f32>
    }) : (tensor<2x3xf32>, tensor<4xf32>) -> (tensor<2x3xf32>, tensor<4xf32>)
    return %5#0, %5#1 : tensor<2x3xf32>, tensor<4xf32>
  }
}
module @step attributes {mhlo.num_replicas = 2 : i32} {
  func.func public @main(
    %x0: tensor<2x3xf32>
  ) -> (tensor<2x3xf32>) {
    // c_reduce_sum
    %4 = "stablehlo.all_reduce"(%x0) <{replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>}> ({
    ^bb0(%1: tensor<f32>, %2: tensor<f32>):
      %3 = stablehlo.add %1, %2 : tensor<f32>
      stablehlo.return %3 : tensor<f32>
    }) : (tensor<2x3xf32>) -> tensor<2x3xf32>
    %5 = stablehlo.replica_id : tensor<ui32>
    %6 = stablehlo.constant dense<1> : tensor<ui32>
    %7 = stablehlo.compare EQ, %5, %6, UNSIGNED : (tensor<ui32>, tensor<ui32>) -> tensor<i1>
    %8 = stablehlo.constant dense<0x00000000> : tensor<2x3xf32>
    %c_reduce_sum_0 = stablehlo.select %7, %4, %8 : tensor<i1>, tensor<2x3xf32>
    return %c_reduce_sum_0 : tensor<2x3xf32>
  }
}
module @step attributes {mhlo.num_replicas = 2 : i32} {
  func.func public @main(
    %x0: tensor<2x3xf32>
  ) -> (tensor<2x3xf32>) {
    // c_broadcast
    %1 = stablehlo.bitcast_convert %x0 : (tensor<2x3xf32>) -> tensor<2x3xui32>
    %2 = stablehlo.replica_id : tensor<ui32>
    %3 = stablehlo.constant dense<1> : tensor<ui32>
    %4 = stablehlo.compare EQ, %2, %3, UNSIGNED : (tensor<ui32>, tensor<ui32>) -> tensor<i1>
    %5 = stablehlo.constant dense<0> : tensor<2x3xui32>
    %6 = stablehlo.select %4, %1, %5 : tensor<i1>, tensor<2x3xui32>
    %10 = "stablehlo.all_reduce"(%6) <{replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>}> ({
    ^bb0(%7: tensor<ui32>, %8: tensor<ui32>):
      %9 = stablehlo.add %7, %8 : tensor<ui32>
      stablehlo.return %9 : tensor<ui32>
    }) : (tensor<2x3xui32>) -> tensor<2x3xui32>
    %c_broadcast_0 = stablehlo.bitcast_convert %10 : (tensor<2x3xui32>) -> tensor<2x3xf32>
    return %c_broadcast_0 : tensor<2x3xf32>
  }
}
module @step attributes {mhlo.num_replicas = 2 : i32} {
  func.func public @main(
    %x0: tensor<2x3xf32>
  ) -> (tensor<4x3xf32>) {
    // c_allgather
    %c_allgather_0 = "stablehlo.all_gather"(%x0) <{all_gather_dim = 0 : i64, replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>}> : (tensor<2x3xf32>) -> tensor<4x3xf32>
    return %c_allgather_0 : tensor<4x3xf32>
  }
}
module @step attributes {mhlo.num_replicas = 2 : i32} {
  func.func public @main(
    %x0: tensor<2x3xf32>
  ) -> (tensor<1x3xf32>) {
    // c_reducescatter
    %c_reducescatter_0 = "stablehlo.reduce_scatter"(%x0) <{scatter_dimension = 0 : i64, replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>}> ({
    ^bb0(%1: tensor<f32>, %2: tensor<f32>):
      %3 = stablehlo.add %1, %2 : tensor<f32>
      stablehlo.return %3 : tensor<f32>
    }) : (tensor<2x3xf32>) -> tensor<1x3xf32>
    return %c_reducescatter_0 : tensor<1x3xf32>
  }
}
