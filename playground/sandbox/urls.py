from django.urls import path

from playground.sandbox import views

urlpatterns = [path("", views.frame, name="sandbox")]
